"""YAML of defaults and weights: plain values only, parsed in time bounded by the length of the text."""

from __future__ import annotations

from typing import Any

DEEPEST = 50  # levels; PyYAML reads by recursion


def parse(text: str) -> Any:
    """The value that the text stands for. Raises yaml.YAMLError.

    Aliases are refused: a few lines of them stand for billions of values. So are duplicate keys.
    """
    import yaml  # only where there is a file: --help and most runs do without

    class Loader(yaml.SafeLoader):
        """yaml.SafeLoader, which makes no objects and runs no code, without aliases and duplicate keys."""

        depth = 0

        def compose_node(self, parent: yaml.Node | None, index: yaml.Node | int) -> Any:
            event = self.peek_event()
            if self.check_event(yaml.AliasEvent):
                raise yaml.MarkedYAMLError(None, None, f"'*{event.anchor}' is an alias", event.start_mark)
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.MarkedYAMLError(None, None, f"more than {DEEPEST} levels", event.start_mark)
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.MarkedYAMLError(
                        None, None, f"'{key.value}' stands there twice", key.start_mark
                    )
                seen.update([key.value] if isinstance(key, yaml.ScalarNode) else [])
            return super().construct_mapping(node, deep)

    try:
        # `load` as `safe_load` calls it.
        return yaml.load(text, Loader)
    except (ValueError, OverflowError) as error:  # an endless number, an invalid date
        raise yaml.YAMLError(str(error)) from None
