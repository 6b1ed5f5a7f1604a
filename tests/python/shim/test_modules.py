"""Modules below `horovod` as attributes of their parents, as Horovod's own imports leave them."""

import functools
import importlib.util
import re
import textwrap

import launcher_tools as tools
import pytest

from tfring.horovod import shim

REFUSED = {
    **shim._INSTEAD,
    **dict.fromkeys(shim._FOREIGN, "Horovod's TensorFlow, Keras, Ray and Spark parts only"),
}
# Parents first, so that each module is asked for by its parent's attribute before anything else.
ASK = """
    import importlib, sys

    for name in sorted({names!r}, key=lambda name: name.count(".")):
        parent, _, child = f"horovod.{{name}}".rpartition(".")
        assert f"horovod.{{name}}" not in sys.modules
        try:
            module = importlib.import_module(parent)
            assert child not in vars(module)
            value = getattr(module, child)
        except Exception as error:
            print(f"ASKED {{name}}: {{type(error).__name__}} {{error}}")
        else:
            found = value is sys.modules.get(f"horovod.{{name}}") is getattr(module, child)
            print(f"ASKED {{name}}: {{found}}")
"""


@functools.cache
def answers() -> dict[str, str]:
    script = ASK.format(names=sorted(shim._KNOWN))
    done = tools.run_python("-c", _with_shim(script))
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^ASKED (\S+): (.*)$", done.stdout, re.MULTILINE))
    assert set(found) == shim._KNOWN
    return found


def _with_shim(script: str) -> str:
    return f"import sys; sys.path.insert(0, {str(shim.SHIM_FOLDER)!r})\n{textwrap.dedent(script)}"


def _without(name: str) -> str:
    """What a module says that needs a package which is not installed; "" if it is."""
    part = name.partition(".")[0]
    package, text = {
        "ray": ("ray", "tfring.ray needs Ray"),
        "spark": ("pyspark", "tfring.spark needs Spark"),
    }.get(part, ("sys", ""))
    return "" if importlib.util.find_spec(package) else f"{text}, which is not installed"


@pytest.mark.parametrize("name", sorted(shim._MODULES))
def test_module_is_an_attribute_of_its_parent(name: str) -> None:
    assert answers()[name] == "True" or (_without(name) and _without(name) in answers()[name])


def test_each_module_of_tfring_lists_its_public_names() -> None:
    """Also those that can be imported only beside Ray or Spark."""
    targets = {target for target in shim._MODULES.values() if target is not None}
    files = [tools.ROOT.joinpath(*target.split(".")) for target in targets]
    files = [one / "__init__.py" if one.is_dir() else one.with_suffix(".py") for one in files]
    assert len(files) > 10
    assert [str(file) for file in files if "__all__" not in file.read_text()] == []


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_missing_says_what_to_use_at_the_access(name: str) -> None:
    parent_refused = _without(name) or any(name.startswith(f"{o}.") for o in REFUSED)
    kind = "ImportError" if parent_refused else "AttributeError"
    assert answers()[name].startswith(kind)
    assert parent_refused or REFUSED[name] in answers()[name]


# What follows needs no fresh process, so TensorFlow is loaded once for all.
QUESTIONS = """
    import importlib, keras, tensorflow as tf, tfring
    import horovod, horovod.tensorflow as hvd

    asked = ((horovod, "torch"), (hvd, "data"), (hvd, "no_such_module"))
    print(f"FOUND hasattr: {[hasattr(module, name) for module, name in asked]}")

    tfring.init()
    for name in ("tensorflow", "tensorflow.keras", "keras", None):
        hvd = importlib.import_module(f"horovod.{name}" if name else "tfring.keras")
        wrap = [hvd.DistributedOptimizer]
        if hasattr(hvd, "PartialDistributedOptimizer"):
            wrap.append(hvd.PartialDistributedOptimizer)
        hooks = [make(keras.optimizers.SGD())._tfring_hook for make in wrap]
        print(f"WEIGHT {name}: {[hook.options.weight_by for hook in hooks]}")

    fp16, Sum = tfring.Compression.fp16, tfring.Sum
    orders = {
        "tensorflow": ("a", False, "", "CPU:1", fp16, True, 2, Sum),
        "tensorflow.keras": ("a", "", "CPU:1", fp16, True, 1.0, Sum, 2),
        "keras": ("a", "", "CPU:1", fp16, True, 1.0, Sum, 0, 3),
    }
    for module, given in orders.items():
        hvd = importlib.import_module(f"horovod.{module}")
        o = hvd.DistributedOptimizer(keras.optimizers.SGD(), *given)._tfring_hook.options
        found = [o.name, o.device_sparse, o.compression is fp16]
        found += [o.sparse_as_dense, o.op == Sum, o.backward_passes_per_step, o.groups]
        print(f"ORDER {module}: {found}")
    tape = hvd.DistributedGradientTape(tf.GradientTape(), "", "", tfring.Compression.bf16)
    print("ORDER tape:", tape._reducer.options.compression is tfring.Compression.bf16)
    layer = keras.layers.Dense(1)
    tape = hvd.PartialDistributedGradientTape(gradtape=tf.GradientTape(), local_layers=[layer])
    print("ORDER same:", hvd.DistributedGradientTape is hvd.DistributedGradientTape)
    print("ORDER partial:", tape._reducer.options.local_layers == [layer])
    try:
        hvd.DistributedOptimizer(keras.optimizers.SGD(), *["x"] * 10)
    except TypeError as error:
        print("ORDER error:", error)
"""


def found(word: str) -> dict[str, str]:
    """What the questions print after this word."""
    return dict(re.findall(rf"^{word} (\S+): (.*)$", _asked(), re.MULTILINE))


@functools.cache
def _asked() -> str:
    done = tools.run_python("-c", _with_shim(QUESTIONS))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hasattr_of_a_missing_module_is_false() -> None:
    assert found("FOUND") == {"hasattr": "[False, False, False]"}


def test_ranks_count_alike_under_the_shim() -> None:
    """tfring itself weights them by what their losses divide by."""
    assert found("WEIGHT") == {
        "tensorflow": "[None]",
        "tensorflow.keras": "[None, None]",
        "keras": "[None, None]",
        "None": "['loss', 'loss']",
    }


def test_options_come_by_position_in_each_modules_order() -> None:
    assert found("ORDER") == {
        "tensorflow": "['a', 'CPU:1', True, True, True, 2, None]",
        "tensorflow.keras": "['a', 'CPU:1', True, True, True, 2, None]",
        "keras": "['a', 'CPU:1', True, True, True, 1, 3]",
        "tape": "True",
        "same": "True",
        "partial": "True",
        "error": "DistributedOptimizer takes at most 10 positional arguments, not 11",
    }
