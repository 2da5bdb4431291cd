"""Settings of a service: YAML file < environment < flags, and anything unknown is an error.

Each service subclasses `ServiceSettings` in its own config module. Knows no service.
"""

import os
import sys
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)


class ServiceSettings(BaseSettings):
    """Fields that every service has. `load` reads flags, environment and file."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)
    program: ClassVar[str] = "paceline"
    env_prefix: ClassVar[str] = "PACELINE_"

    host: str = Field(
        "127.0.0.1", description="address to listen on; other than loopback needs --insecure"
    )
    port: int = Field(0, ge=0, le=65535, description="port to listen on; 0 picks a free one")
    insecure: bool = Field(
        False, description="allow plaintext on a non-loopback address (put TLS in front)"
    )
    reflection: bool = Field(True, description="serve gRPC reflection")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port of /metrics, for Prometheus; 0 is off"
    )
    metrics_host: str = Field(
        "127.0.0.1", description="address of /metrics; other than loopback needs --insecure"
    )
    drain_s: float = Field(10.0, ge=0, description="seconds that running answers get on SIGTERM")
    log_level: str = Field("info", description="debug, info, warning or error")
    config: str | None = Field(None, description="YAML file with any of these settings")

    @field_validator("*", mode="before")
    @classmethod
    def _split_lists(cls, value: Any, info: ValidationInfo) -> Any:
        """A list in the environment is words with commas between them."""
        name = info.field_name or ""
        if isinstance(value, str) and cls.model_fields[name].annotation == list[str]:
            return [word.strip() for word in value.split(",") if word.strip()]
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    @classmethod
    def load(cls, argv: list[str] | None = None) -> Self:
        """From flags (`argv`, or the process's), environment and file; exits 2 on a bad value."""
        _refuse_unknown_variables(cls)

        class Loader(cls):  # type: ignore[valid-type, misc]
            model_config = SettingsConfigDict(
                extra="forbid",
                frozen=True,
                env_prefix=cls.env_prefix,
                enable_decoding=False,
                cli_prog_name=f"python -m {cls.program}",
                cli_kebab_case=True,
                cli_implicit_flags=True,
                cli_hide_none_type=True,
                cli_avoid_json=True,
            )

            @classmethod
            def settings_customise_sources(
                cls, settings_cls: Any, init_settings: Any, env_settings: Any, **_: Any
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                flags = CliSettingsSource[Any](
                    settings_cls, cli_parse_args=sys.argv[1:] if argv is None else argv
                )
                named = flags().get("config") or os.environ.get(f"{cls.env_prefix}CONFIG")
                if not named:
                    return flags, env_settings
                return flags, env_settings, YamlConfigSettingsSource(settings_cls, named)

        Loader.__doc__ = cls.__doc__
        try:
            loaded = Loader()
        except ValidationError as error:
            for problem in error.errors():
                name = ".".join(str(part) for part in problem["loc"])
                print(f"{cls.program}: {name}: {problem['msg']}", file=sys.stderr)
            raise SystemExit(2) from None
        except SettingsError as error:
            print(f"{cls.program}: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        return cls(**loaded.model_dump())


def _refuse_unknown_variables(cls: type[ServiceSettings]) -> None:
    known = {f"{cls.env_prefix}{name}".upper() for name in cls.model_fields}
    for name in os.environ:
        if name.upper().startswith(cls.env_prefix.upper()) and name.upper() not in known:
            print(f"{cls.program}: unknown environment variable {name}", file=sys.stderr)
            raise SystemExit(2)
