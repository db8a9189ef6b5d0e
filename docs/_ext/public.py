"""The directive `public`: exported names, one a line, with signatures and docstrings read as Markdown.

    ```{public}
    sgld
    errors.StoreError
    ```

What the module that defines a name says of itself (the equation, the law left invariant) comes first.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from operator import attrgetter

from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective
from sphinx.util.inspect import signature, stringify_signature

import fokker


def fenced(directive: str, title: str, body: list[str]) -> list[str]:
    longest = max((len(line) - len(line.lstrip("`")) for line in (text.strip() for text in body)), default=0)
    fence = "`" * max(longest + 1, 3)
    return [f"{fence}{{{directive}}} {title}", *body, fence, ""]


def doc(value: object) -> list[str]:
    own = vars(value).get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
    # Markdown takes >>> for a quotation in a quotation.
    text = re.sub(r"(?m)^>>> (.+\n?)+", r"```pycon\n\g<0>\n```\n", inspect.cleandoc(own or ""))
    return ["", *text.splitlines(), ""]


def call(value: object) -> str:
    return stringify_signature(signature(value), unqualified_typehints=True)


def members(cls: type) -> Iterator[list[str]]:
    """Public methods, class methods and properties that the class itself defines and documents."""
    for name, value in vars(cls).items():
        bound = getattr(cls, name)
        if name.startswith("_") or not getattr(bound, "__doc__", None):
            continue
        if isinstance(value, property):
            yield fenced("py:property", name, doc(value))
        elif isinstance(value, classmethod | staticmethod):
            yield fenced("py:method", name + call(bound), [f":{type(value).__name__}:", *doc(bound)])
        elif inspect.isfunction(value):
            text = stringify_signature(signature(value, bound_method=True), unqualified_typehints=True)
            yield fenced("py:method", name + text, doc(value))


def entry(name: str) -> list[str]:
    value = attrgetter(name)(fokker)
    if not inspect.isclass(value):
        return fenced("py:function", f"fokker.{name}{call(value)}", doc(value))
    inner = [line for member in members(value) for line in member]
    if issubclass(value, Exception):
        return fenced("py:exception", f"fokker.{name}", doc(value) + inner)
    return fenced("py:class", f"fokker.{name}{call(value)}", doc(value) + inner)


class Public(SphinxDirective):
    has_content = True

    def run(self):
        lines: list[str] = []
        told: set[str] = set()
        for name in filter(None, (line.strip() for line in self.content)):
            home = attrgetter(name)(fokker).__module__
            if home not in told:
                lines += doc(sys.modules[home])
                told.add(home)
                self.env.note_dependency(sys.modules[home].__file__)
            lines += entry(name)
        return self.parse_text_to_nodes(StringList(lines, source=f"docstrings of {', '.join(sorted(told))}"))


def setup(app):
    app.add_directive("public", Public)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
