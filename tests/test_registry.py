"""Names: found with a helpful hint, claimed once, replaceable in a notebook, and broken plug-ins harm nobody else."""

import itertools

import pytest
import torch

import aotkit
from aotkit.backends.nop import compile_graph
from aotkit.partitioners.default import partition as default_partition

KINDS = {
    "backend": (aotkit.register_backend, aotkit.unregister_backend, aotkit.get_backend, aotkit.list_backends),
    "partitioner": (
        aotkit.register_partitioner,
        aotkit.unregister_partitioner,
        aotkit.get_partitioner,
        aotkit.list_partitioners,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def register(kind):
    """`register_backend` or `register_partitioner`, undone afterwards."""
    before = set(KINDS[kind][3]())
    yield KINDS[kind][0]
    for name in set(KINDS[kind][3]()) - before:
        KINDS[kind][1](name)


@pytest.fixture
def unregister(kind):
    return KINDS[kind][1]


@pytest.fixture
def get(kind):
    return KINDS[kind][2]


@pytest.fixture
def names(kind):
    return KINDS[kind][3]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package: its entry points by kind, and the source of its only module."""

    def add(package, source, **names):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        sections = [
            f"[aotkit.{kind}s]\n" + "\n".join(f"{name} = {package}:{attribute}" for name, attribute in group.items())
            for kind, group in names.items()
        ]
        (info / "entry_points.txt").write_text("\n\n".join(sections) + "\n")
        (tmp_path / f"{package}.py").write_text(source)

    monkeypatch.syspath_prepend(tmp_path)
    return add


def plugin(*args, **kwargs):
    raise NotImplementedError


def another_plugin(*args, **kwargs):
    raise NotImplementedError


# Looking up.


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(aotkit.UnknownNameError) as e:
        aotkit.compile(torch.sin, backend="inductr")
    listed = ", ".join(aotkit.list_backends())
    assert str(e.value) == f"no backend is named 'inductr'. Did you mean 'inductor'? Registered: {listed}."

    with pytest.raises(aotkit.UnknownNameError) as e:
        aotkit.compile(torch.sin, backend="nop", partition="mincut")
    listed = ", ".join(aotkit.list_partitioners())
    assert str(e.value) == f"no partitioner is named 'mincut'. Did you mean 'min_cut'? Registered: {listed}."


def test_a_name_far_from_all_others_suggests_none(get, kind, names):
    with pytest.raises(aotkit.UnknownNameError) as e:
        get("xyzzy")
    assert str(e.value) == f"no {kind} is named 'xyzzy'. Registered: {', '.join(names())}."


def test_unknown_names_are_lookup_errors(get):
    with pytest.raises(LookupError):
        get("xyzzy")


def test_what_is_installed_after_a_name_was_looked_up_is_found(install, get, kind, names):
    for number in (1, 2):  # into a place that was not there, and into one that was
        name = f"late_{number}"
        with pytest.raises(LookupError):
            get(name)
        install(f"package_{number}", "def plugin(*args, **kwargs): pass", **{kind: {name: "plugin"}})
        assert name in names()
        assert get(name) is not None


@pytest.mark.parametrize("spec", [3, None, {"nop"}])
def test_only_names_and_callables_are_plugins(get, kind, spec):
    with pytest.raises(TypeError, match=f"{kind} must be a registered name or a callable, not"):
        get(spec)


# Registering.


def test_a_registered_name_is_listed_and_found(register, get, names):
    assert register("mine", plugin) is plugin
    assert "mine" in names()
    found = get("mine")
    assert plugin in (found, getattr(found, "fw_compiler", None))


def test_register_is_a_decorator_that_returns_the_function(register, get):
    @register("mine")
    def decorated(*args, **kwargs):
        raise NotImplementedError

    found = get("mine")
    assert decorated in (found, getattr(found, "fw_compiler", None))


def test_a_second_claim_names_both_owners(register, kind, get):
    register("mine", plugin)
    with pytest.raises(aotkit.DuplicateNameError) as e:
        register("mine", another_plugin)
    assert str(e.value) == (
        f"{kind} 'mine' cannot be {__name__}.another_plugin: it is already {__name__}.plugin. "
        f"Choose another name, or call unregister_{kind}('mine') first."
    )
    assert plugin in (get("mine"), getattr(get("mine"), "fw_compiler", None))


@pytest.mark.parametrize(("kind", "name"), [("backend", "nop"), ("partitioner", "default")])
def test_an_installed_name_cannot_be_taken(kind, name):
    with pytest.raises(aotkit.DuplicateNameError) as e:
        KINDS[kind][0](name, plugin)
    assert f"{kind} '{name}' cannot be {__name__}.plugin: it is already aotkit.{kind}s.{name}:" in str(e.value)
    assert "of package aotkit. Choose another name." in str(e.value)


def test_running_a_notebook_cell_again_replaces_the_function(register, kind, get):
    cell = f"@aotkit.register_{kind}('mine')\ndef plugin(*args, **kwargs):\n    return VERSION\n"
    for version in (1, 2):
        exec(cell, {"aotkit": aotkit, "__name__": "__main__", "VERSION": version})
    found = get("mine")
    assert getattr(found, "fw_compiler", found)() == 2


def test_an_edited_cell_replaces_the_function(register, kind, get):
    for version in (1, 2):
        cell = f"@aotkit.register_{kind}('mine')\ndef plugin(*args, **kwargs):\n    return {version}\n"
        exec(cell, {"aotkit": aotkit, "__name__": "__main__"})
    found = get("mine")
    assert getattr(found, "fw_compiler", found)() == 2


@pytest.mark.parametrize("kind", ["backend"])
def test_a_cell_with_a_backend_object_can_run_again(register, get):
    cell = "def plugin(gm, inputs):\n    return gm\nregister('mine', aotkit.Backend(plugin))\n"
    for _ in range(2):
        exec(cell, {"aotkit": aotkit, "register": register, "__name__": "__main__"})
    assert isinstance(get("mine"), aotkit.Backend)


@pytest.mark.parametrize("plugin", [3, "nop", ()])
def test_only_callables_can_be_registered(register, kind, plugin, names):
    with pytest.raises(TypeError, match=f"{kind} must be a registered name or a callable, not"):
        register("mine", plugin)
    assert "mine" not in names()


def test_the_same_lambda_may_run_again_but_another_may_not(register):
    source = "register('mine', lambda *args, **kwargs: {})"
    for _ in range(2):
        exec(source.format(1), {"register": register, "__name__": "__main__"})
    with pytest.raises(aotkit.DuplicateNameError, match=r"cannot be __main__\.<lambda>"):
        exec(source.format(2), {"register": register, "__name__": "__main__"})


def test_callable_objects_can_be_registered(register, get):
    class Plugin:
        def __call__(self, *args, **kwargs):
            raise NotImplementedError

    made = register("mine", Plugin())
    assert made in (get("mine"), getattr(get("mine"), "fw_compiler", None))


@pytest.mark.parametrize("name", ["", "Mine", "my-backend", "my backend", "dynamo:mine", "a\n"])
def test_names_are_lower_case_words(register, kind, name):
    with pytest.raises(ValueError, match=f"{kind} name .* must consist of lower-case letters, digits and underscores"):
        register(name, plugin)


# Unregistering.


def test_an_unregistered_name_is_unknown_and_free(register, unregister, get, names):
    register("mine", plugin)
    unregister("mine")
    assert "mine" not in names()
    with pytest.raises(aotkit.UnknownNameError):
        get("mine")
    register("mine", another_plugin)


def test_unregistering_an_unknown_name_suggests_the_nearest(register, unregister):
    register("my_plugin", plugin)
    with pytest.raises(aotkit.UnknownNameError, match=r"Did you mean 'my_plugin'\?"):
        unregister("my_plugins")


def test_installed_names_stay():
    with pytest.raises(aotkit.UnknownNameError) as e:
        aotkit.unregister_backend("nop")
    assert str(e.value) == (
        "backend 'nop' was not registered in this process: it is aotkit.backends.nop:compile_graph of package aotkit. "
        "Uninstall that package to remove it."
    )


# Installed packages.


def test_an_installed_package_adds_names(install, get, kind):
    source = "def plugin(*args, **kwargs):\n    return 7\n"
    install("wonderful", source, **{kind: {"wonder": "plugin"}})
    found = get("wonder")
    assert getattr(found, "fw_compiler", found)() == 7


def test_a_broken_package_is_listed_with_its_error_and_harms_no_other(install):
    install("rotten", "import no_such_module\n", backend={"rotten": "plugin"}, partitioner={"rotten": "plugin"})
    for get, names, status in (
        (aotkit.get_backend, aotkit.list_backends, aotkit.backend_status),
        (aotkit.get_partitioner, aotkit.list_partitioners, aotkit.partitioner_status),
    ):
        assert "rotten" in names()
        problem = status()["rotten"]
        assert "'rotten' (rotten:plugin of package rotten) is broken: importing it raised" in problem
        assert "ModuleNotFoundError: No module named 'no_such_module'. Repair or uninstall that package." in problem
        with pytest.raises(aotkit.UnavailableError) as e:
            get("rotten")
        assert str(e.value) == problem
    assert aotkit.backend_status()["nop"] is None
    assert aotkit.partitioner_status()["default"] is None
    assert aotkit.compile(torch.sin, backend="nop", partition="default")(torch.zeros(2)).tolist() == [0, 0]


def test_an_entry_point_to_something_missing_is_broken(install, get, kind):
    install("hollow", "", **{kind: {"hollow": "plugin"}})
    with pytest.raises(aotkit.UnavailableError, match=r"hollow:plugin of package hollow.*AttributeError"):
        get("hollow")


def test_an_entry_point_to_something_that_is_no_function_is_broken(install, kind):
    install("wooden", "plugin = 3\n", **{kind: {"wooden": "plugin"}})
    status = aotkit.backend_status if kind == "backend" else aotkit.partitioner_status
    assert "'wooden' (wooden:plugin of package wooden) is broken" in status()["wooden"]
    assert "not 3" in status()["wooden"]


def test_a_name_in_two_packages_names_both(install, get, kind):
    for package in ("left", "right"):
        install(package, "def plugin(*args, **kwargs): ...\n", **{kind: {"contested": "plugin"}})
    with pytest.raises(aotkit.DuplicateNameError) as e:
        get("contested")
    assert f"{kind} 'contested' is provided twice" in str(e.value)
    assert "left:plugin of package left" in str(e.value)
    assert "right:plugin of package right" in str(e.value)


def test_importing_a_package_may_warn_of_deprecations(install, get, kind):
    source = "import warnings\nwarnings.warn('old', DeprecationWarning)\ndef plugin(*args, **kwargs): ...\n"
    install("aged", source, **{kind: {"aged": "plugin"}})
    get("aged")


# What a machine cannot run.


def test_an_unavailable_backend_is_listed_with_its_reason():
    aotkit.register_backend("fpga", aotkit.Backend(compile_graph, unavailable=lambda: "there is no FPGA."))
    try:
        assert "fpga" in aotkit.list_backends()
        assert aotkit.backend_status()["fpga"] == "backend 'fpga' cannot run here: there is no FPGA."
        with pytest.raises(aotkit.UnavailableError, match="backend 'fpga' cannot run here: there is no FPGA"):
            aotkit.compile(torch.sin, backend="fpga")
    finally:
        aotkit.unregister_backend("fpga")


def test_a_failing_availability_test_is_a_reason():
    backend = aotkit.Backend(compile_graph, unavailable=lambda: 1 / 0)
    with pytest.raises(aotkit.UnavailableError, match="its `unavailable` raised ZeroDivisionError"):
        aotkit.compile(torch.sin, backend=backend)


# Names and objects are interchangeable.


@pytest.mark.parametrize(
    "spec", ["nop", compile_graph, aotkit.Backend(compile_graph), lambda gm, inputs: gm], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("partition", ["default", default_partition], ids=lambda s: type(s).__name__)
def test_names_objects_and_functions_are_accepted_everywhere(spec, partition):
    def f(x):
        return (x.sin() * x).sum()

    x = torch.randn(3, requires_grad=True)
    (want,) = torch.autograd.grad(f(x), x)
    for compiled in (
        aotkit.compile(f, backend=spec, partition=partition),
        torch.compile(f, backend=aotkit.torch_backend(spec, partition)),
        aotkit.memory_efficient_fusion(f, backend=spec, partition=partition),
    ):
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], want)
    assert aotkit.check(f, x, backend=spec, partition=partition).passed
    assert aotkit.extract(f, x, backend=spec, partition=partition).backward is not None


# Dynamo's backends.


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        *itertools.product(["eager", "aot_eager"], ["default", "min_cut", "nx_min_cut"]),
        ("inductor", "min_cut"),
        *(pytest.param("inductor", partition, marks=pytest.mark.sweep) for partition in ("default", "nx_min_cut")),
    ],
)
def test_dynamo_backends_compile_graphs(name, partition):
    def f(x, w):
        return torch.nn.functional.gelu(x @ w).square()

    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)
    compiled = aotkit.compile(f, backend=f"dynamo:{name}", partition=partition)
    graphs = compiled.graphs(x, w)
    assert (graphs.backend, graphs.partition) == (f"dynamo:{name}", partition)
    want = torch.autograd.grad(f(x, w).sum(), (x, w))
    for got, gradient in zip(torch.autograd.grad(compiled(x, w).sum(), (x, w)), want, strict=True):
        torch.testing.assert_close(got, gradient)


def test_an_unknown_dynamo_backend_lists_the_known():
    with pytest.raises(aotkit.UnknownNameError, match=r"_dynamo has no backend named 'no_such'\. It has: .*eager"):
        aotkit.compile(torch.sin, backend="dynamo:no_such")


def test_a_bare_dynamo_is_an_unknown_name():
    with pytest.raises(aotkit.UnknownNameError, match="no backend is named 'dynamo:'"):
        aotkit.compile(torch.sin, backend="dynamo:")
