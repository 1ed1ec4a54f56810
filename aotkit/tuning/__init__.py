"""How a function should run, found out by measuring: candidates -> what is right -> what is best."""

from aotkit.tuning.answer import autotune
from aotkit.tuning.function import TunedFunction
from aotkit.tuning.recipe import TunedRecipe
from aotkit.tuning.verdicts import in_one_line
from aotkit.tuning.workload import Workload

__all__ = ["TunedFunction", "TunedRecipe", "Workload", "autotune", "in_one_line"]
