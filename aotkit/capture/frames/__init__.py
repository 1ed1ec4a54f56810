"""What TorchDynamo captured of a call in an earlier process, run again without TorchDynamo.

`keeping` makes data of the conditions under which Dynamo runs it, and of the code that it runs; `finding` compares
these `facts` with a call, and runs it. `telling` makes texts of values, `code_data` data of code.
"""

from aotkit.capture.frames.finding import KeptCaptures
from aotkit.capture.frames.keeping import ToldFrame, keep_frame
from aotkit.capture.frames.piece import KeptPiece, NotAsKept

__all__ = ["KeptCaptures", "KeptPiece", "NotAsKept", "ToldFrame", "keep_frame"]
