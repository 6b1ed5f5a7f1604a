"""A small training of DeePMD-kit: `water.py make FOLDER` and `water.py compare FOLDER ONE OTHER`.

Boxes of 16 water molecules at random places, with random energies and forces: this checks
the arithmetic of the training, not what it learns.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

MOLECULES, BOX = 16, 8.0  # the edge of a box is 8 Angstrom
STEPS = 20


def main() -> None:
    action, folder = sys.argv[1], Path(sys.argv[2])
    if action == "make":
        make(folder)
    else:
        compare(folder / sys.argv[3], folder / sys.argv[4])


def make(folder: Path) -> None:
    """Writes data and inputs.

    `all` has two frames, `frame0` and `frame1` have one each. The inputs: `train` for any number of
    ranks, `further` for its second half; then `union` (one process, both frames) and `rank0`,
    `rank1` (two ranks, one frame each), which start from equal weights.
    """
    rng = np.random.default_rng(3)
    frames = [frame(rng) for _ in range(2)]
    for name, chosen in (("all", frames), ("frame0", frames[:1]), ("frame1", frames[1:])):
        write_system(folder / name, chosen)
    write_input(folder / "train.json", "all", 1, STEPS, "trained")
    write_input(folder / "further.json", "all", 1, 2 * STEPS, "trained")
    write_input(folder / "union.json", "all", 2, STEPS, "union")
    for rank in range(2):
        write_input(folder / f"rank{rank}.json", f"frame{rank}", 1, STEPS, "ranks")


def frame(rng: Any) -> dict[str, Any]:
    """Places molecules in the cells of a grid, all oxygens before all hydrogens."""
    cells = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[:MOLECULES]
    oxygen = (cells + 0.5 + rng.uniform(-0.1, 0.1, cells.shape)) * BOX / 3
    hydrogen = np.repeat(oxygen, 2, 0)
    way = rng.normal(size=hydrogen.shape)
    hydrogen += 0.96 * way / np.linalg.norm(way, axis=1, keepdims=True)
    coordinates = np.concatenate([oxygen, hydrogen])
    return {
        "coord": coordinates.ravel(),
        "force": rng.normal(size=coordinates.shape).ravel(),
        "energy": np.array(-150.0 * MOLECULES + rng.normal()),
        "box": (np.eye(3) * BOX).ravel(),
    }


def write_system(folder: Path, frames: list[dict[str, Any]]) -> None:
    """Writes frames in the format deepmd/npy."""
    (folder / "set.000").mkdir(parents=True)
    (folder / "type_map.raw").write_text("O\nH\n")
    types = [0] * MOLECULES + [1] * 2 * MOLECULES
    (folder / "type.raw").write_text("".join(f"{kind}\n" for kind in types))
    for name in frames[0]:
        np.save(folder / "set.000" / f"{name}.npy", np.stack([each[name] for each in frames]))


def write_input(path: Path, system: str, batch: int, steps: int, checkpoint: str) -> None:
    """Writes the input of a training with networks of two small layers, in double precision."""
    net = {"neuron": [6, 12], "precision": "float64", "seed": 1}
    data = {"systems": [str(path.parent / system)], "batch_size": batch}
    content = {
        "model": {
            "type_map": ["O", "H"],
            "descriptor": {
                **net,
                "type": "se_e2_a",
                "sel": [24, 48],
                "rcut": 3.5,
                "rcut_smth": 0.5,
                "axis_neuron": 4,
            },
            "fitting_net": net,
        },
        "learning_rate": {
            "type": "exp",
            "start_lr": 0.001,
            "stop_lr": 3e-8,
            "decay_steps": 5,
            "scale_by_worker": "none",
        },
        "loss": {
            "type": "ener",
            "start_pref_e": 0.02,
            "limit_pref_e": 1,
            "start_pref_f": 1000,
            "limit_pref_f": 1,
            "start_pref_v": 0,
            "limit_pref_v": 0,
        },
        "training": {
            "training_data": data,
            "numb_steps": steps,
            "seed": 10,
            "disp_freq": 1,
            "save_freq": steps,
            "disp_file": f"{path.stem}.out",
            "save_ckpt": f"{checkpoint}/model.ckpt",
        },
    }
    path.write_text(json.dumps(content, indent=1))


def compare(one: Path, other: Path) -> None:
    """Prints how far the variables of two checkpoints differ, relative to the largest values."""
    import tensorflow as tf

    first, second = (tf.train.load_checkpoint(str(path)) for path in (one, other))
    names = first.get_variable_to_shape_map()
    assert names.keys() == second.get_variable_to_shape_map().keys()
    worst = 0.0
    for name in names:
        a, b = (np.asarray(c.get_tensor(name), np.float64) for c in (first, second))
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)))
    print(f"{len(names)} variables differ by at most {worst:.1e}")


if __name__ == "__main__":
    main()
