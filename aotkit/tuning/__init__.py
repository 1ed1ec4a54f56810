"""How a function should run, found out by measuring: candidates -> what is right -> what is best."""

from aotkit.tuning.answer import autotune, tuned
from aotkit.tuning.candidates import Candidate
from aotkit.tuning.function import TunedFunction
from aotkit.tuning.races import race
from aotkit.tuning.recipe import TunedRecipe
from aotkit.tuning.steps import peak, sampler, steps_a_sample
from aotkit.tuning.verdicts import Unfit, graphs_of, in_one_line, made
from aotkit.tuning.workload import Workload

__all__ = [
    "Candidate",
    "TunedFunction",
    "TunedRecipe",
    "Unfit",
    "Workload",
    "autotune",
    "graphs_of",
    "in_one_line",
    "made",
    "peak",
    "race",
    "sampler",
    "steps_a_sample",
    "tuned",
]
