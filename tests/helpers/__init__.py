"""What tests share, and where it is."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE_TASKS = Path(__file__).with_name("engine_tasks.py")
QUICK_TASKS = Path(__file__).with_name("quick_tasks.py")
UNRULY_TASK = Path(__file__).with_name("unruly_task.py")
MACHINE = Path(__file__).with_name("machine.py")
