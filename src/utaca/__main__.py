"""``python -m utaca`` is the command ``utaca``."""

from utaca.app.main import run

if __name__ == "__main__":
    run()
