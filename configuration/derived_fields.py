"""Types of fields that `__post_init__` fills where they are not given."""

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    Derived = Annotated[T, "filled by `__post_init__`"]
else:

    class Derived:
        """`Derived[int]`: who makes a config may leave the field out, and who reads it finds an `int`."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return kind | None  # what `@strict` checks, before the field is filled too


NOT_GIVEN: Any = None  # the default of such a field

__all__ = ["NOT_GIVEN", "Derived"]
