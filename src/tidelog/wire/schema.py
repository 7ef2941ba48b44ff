"""How a message is declared: a small slotted class, and the facts of its fields beside it.

    @message
    class TopicRecord:
        name: str = ""
        topic_id: bytes = ZERO_UUID
        partitions: list[PartitionPart] = fresh(default_factory=list)
        rack: str | None = None

        SCHEMA: ClassVar[Schema] = Schema(
            Field("name", "string"),
            Field("topic_id", "uuid"),
            Field("partitions", [PartitionPart], versions=(1, None)),
            Field("rack", "string", (2, None), nullable=(2, None), tag=0),
            versions=(0, 2),
            flexible=0,
        )

The facts are in wire order and name every attribute. A type is one of Kafka's names (bool int8 int16 uint16 int32 uint32
int64 float64 uuid string bytes records), another declared class, or either of them in a list for an array. Version ranges
are inclusive; None means "and all later ones". `versions` and `flexible` of the schema matter on the outermost class only:
a nested one follows the message it is in. The class attribute is the default, on decode for fields that a version lacks
and on encode for tagged fields, which are written only when they differ. `@dataclass(slots=True)` may stand in
for `@message`; it costs about a millisecond per class at import, which is why the generated modules do not use it.

This file reads and writes no bytes: `plan.py` looks at the facts for one version, the two compilers turn them into code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, dataclass_transform

T = TypeVar("T")
Versions: TypeAlias = tuple[int, int | None]
FieldType: TypeAlias = "str | type[Any] | list[str] | list[type[Any]]"

_FROM_THE_CLASS: Final = object()


class Field(NamedTuple):
    """One field as Kafka describes it. `tagged` may narrow the versions in which `tag` applies."""

    name: str
    type: FieldType
    versions: Versions = (0, None)
    nullable: Versions | None = None
    tag: int | None = None
    tagged: Versions | None = None
    default: object = _FROM_THE_CLASS


class Schema:
    """The facts of one class. `versions` is None on a class that only occurs inside others."""

    __slots__ = ("fields", "flexible", "versions")

    def __init__(
        self, *fields: Field, versions: tuple[int, int] | None = None, flexible: int | None = None
    ) -> None:
        self.fields = fields
        self.versions = versions
        self.flexible = flexible


class Fresh:
    """A default that is made anew for each instance."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return f"Fresh({self.make!r})"


def fresh(*, default_factory: Callable[[], T]) -> T:
    return Fresh(default_factory)  # type: ignore[return-value]


_shared: dict[type[Any], Any] = {}


def shared(cls: type[T]) -> T:
    """The one default instance of a tagged struct. Read-only, so that thousands of partitions may point to it."""
    instance = _shared.get(cls)
    if instance is None:
        locked = type(
            cls.__name__, (cls,), {"__slots__": (), "__setattr__": _refuse, "__module__": cls.__module__}
        )
        instance = object.__new__(locked)
        for name, default in defaults_of(cls).items():
            object.__setattr__(instance, name, default.make() if isinstance(default, Fresh) else default)
        _shared[cls] = instance
    return instance  # type: ignore[no-any-return]


def _refuse(self: object, name: str, value: object) -> None:
    cls = type(self).__name__
    raise AttributeError(
        f"this {cls} is the shared default: assign a new {cls}({name}=...) to the field instead"
    )


class _LazyDataclassFields:
    """Lets `dataclasses.fields`, `replace` and `asdict` work, and costs nothing until one of them is called."""

    def __get__(self, instance: object, owner: type[Any]) -> dict[str, Any]:
        import dataclasses

        described: list[tuple[str, Any, Any]] = []
        for name, default in owner.DEFAULTS.items():
            if isinstance(default, Fresh):
                described.append((name, Any, dataclasses.field(default_factory=default.make)))
            elif type(default).__hash__ is None:
                described.append((name, Any, dataclasses.field(default_factory=partial(_same, default))))
            else:
                described.append((name, Any, dataclasses.field(default=default)))
        described_class: Any = dataclasses.make_dataclass(owner.__name__, described)
        fields: dict[str, Any] = described_class.__dataclass_fields__
        owner.__dataclass_fields__ = fields
        return fields


def _same(default: T) -> T:
    return default


@dataclass_transform(field_specifiers=(fresh,))
def message(cls: type[T]) -> type[T]:
    """What `@dataclass(slots=True)` does, without compiling anything before the first instance is made."""
    body = dict(cls.__dict__)
    names = tuple(field.name for field in body["SCHEMA"].fields)
    try:
        body["DEFAULTS"] = {name: body.pop(name) for name in names}
    except KeyError as error:
        raise TypeError(f"{cls.__name__} has facts for {error} but no attribute with a default") from None
    body.pop("__dict__", None)
    body.pop("__weakref__", None)
    body.update(
        __slots__=names,
        __match_args__=names,
        __init__=_first_init,
        __repr__=_repr,
        __eq__=_equals,
        __hash__=None,
        __dataclass_fields__=_LazyDataclassFields(),
    )
    slotted: type[T] = type(cls.__name__, cls.__bases__, body)
    return slotted


def defaults_of(cls: type[Any]) -> dict[str, Any]:
    """Default by field name; a `Fresh` where each instance gets its own."""
    if "DEFAULTS" in cls.__dict__:
        return cls.DEFAULTS  # type: ignore[no-any-return]
    import dataclasses

    found: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = Fresh(field.default_factory)
    return found


def default_of(cls: type[Any], field: Field) -> Any:
    """The default of one field. A default repeated in the facts must agree with the class."""
    defaults = defaults_of(cls)
    if field.name not in defaults:
        raise TypeError(f"{cls.__name__}.{field.name} has no default: every field of a message needs one")
    default = defaults[field.name]
    plain = default.make() if isinstance(default, Fresh) else default
    if field.default is not _FROM_THE_CLASS and field.default != plain:
        raise TypeError(
            f"{cls.__name__}.{field.name} defaults to {plain!r} in the class, {field.default!r} in the facts"
        )
    return default


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    cls = type(self)
    cls.__init__ = _compile_init(cls)
    cls.__init__(self, *args, **kwargs)


def _compile_init(cls: type[Any]) -> Callable[..., None]:
    scope: dict[str, Any] = {}
    arguments, lines = [], []
    for number, (name, default) in enumerate(cls.DEFAULTS.items()):
        scope[f"_d{number}"] = default
        arguments.append(f"{name}=_d{number}")
        value = name
        if isinstance(default, Fresh):
            scope[f"_f{number}"] = default.make
            value = f"_f{number}() if {name} is _d{number} else {name}"
        lines.append(f"    self.{name} = {value}")
    exec(f"def __init__(self, {', '.join(arguments)}):\n" + ("\n".join(lines) or "    pass"), scope)
    init: Callable[..., None] = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _repr(self: Any) -> str:
    return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.DEFAULTS)})"


def _equals(self: Any, other: object) -> bool:
    if getattr(other, "SCHEMA", None) is not self.SCHEMA:
        return False
    return all(getattr(self, name) == getattr(other, name) for name in self.DEFAULTS)
