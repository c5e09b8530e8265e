"""The SQL screen's editor: completion on Tab, history on Ctrl-↑ and Ctrl-↓."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from .completion import Completion, complete


class Editor(TextArea):
    """Edits SQL. Tab completes as far as it is certain, again: goes through what is possible."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "complete(1)", "complete", show=False),
        Binding("shift+tab", "complete(-1)", "complete back", show=False),
    ]

    class Possible(Message):
        """Several words are possible; `at` is the one that stands in the text now, -1 none of them."""

        def __init__(self, words: tuple[str, ...], at: int) -> None:
            super().__init__()
            self.words, self.at = words, at

    def __init__(self, *, id: str) -> None:
        super().__init__(
            id=id, soft_wrap=True, show_line_numbers=False, tab_behavior="focus", highlight_cursor_line=False
        )
        self._found: Completion | None = None
        self._at = -1

    def on_key(self, event: events.Key) -> None:
        """Any other key ends going through what is possible."""
        if event.key not in ("tab", "shift+tab") and self._found is not None:
            self._found = None
            self.post_message(self.Possible((), -1))

    def action_complete(self, by: int) -> None:
        """Complete the word before the cursor."""
        if self._found is None:
            found = complete(self.text, self._offset())
            if not found.words:
                self.post_message(self.Possible((), -1))
                return
            only = len(found.words) == 1
            self._put(found, found.words[0] if only else found.common)
            if only:
                self.post_message(self.Possible((), -1))
                return
            self._found, self._at = found, -1
        else:
            self._at = (self._at + by) % len(self._found.words)
            self._put(self._found, self._found.words[self._at])
        self.post_message(self.Possible(self._found.words, self._at))

    def _offset(self) -> int:
        row, column = self.cursor_location
        return sum(len(line) + 1 for line in self.text.split("\n")[:row]) + column

    def _put(self, found: Completion, word: str) -> None:
        row, column = self.cursor_location
        begin = column - (self._offset() - found.start)
        current = self.get_text_range((row, begin), (row, column))
        if len(word) >= len(current) or self._found is not None:
            self.replace(word, (row, begin), (row, column))
            self.move_cursor((row, begin + len(word)))
