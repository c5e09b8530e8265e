"""The console entry."""


def main() -> int:
    return 0
