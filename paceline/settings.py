"""Settings of a service: YAML file < environment < flags, and anything unknown is an error.

Each service subclasses `ServiceSettings` in its own config module. Knows no service.
"""

import os
import sys
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from paceline.tls import TlsFiles, read


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
        False, description="allow plaintext, or any caller, on a non-loopback address"
    )
    tls_cert: str = Field("", description="PEM chain of the port's certificate: the port has TLS")
    tls_key: str = Field("", description="PEM key of tls-cert")
    tls_client_ca: str = Field(
        "", description="PEM: callers need a certificate of this CA, with a role that may call"
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

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.port_tls:
            read(self.port_tls)
        return self

    @property
    def port_tls(self) -> TlsFiles | None:
        """Of this service's port; None is plaintext."""
        if not self.tls_cert:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.tls_client_ca)

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


class DiallingSettings(ServiceSettings):
    """Of a service that calls other services of ours."""

    peer_ca: str = Field("", description="PEM: dial over TLS, to certificates of this CA")
    peer_cert: str = Field("", description="PEM chain shown to those; unset: tls-cert")
    peer_key: str = Field("", description="PEM key of peer-cert; unset: tls-key")

    @model_validator(mode="after")
    def _check_peer(self) -> Self:
        if bool(self.peer_cert) != bool(self.peer_key):
            raise ValueError("peer_cert and peer_key belong together")
        if self.peer_cert and not self.peer_ca:
            raise ValueError("peer_cert needs peer_ca")
        if self.peer_tls:
            read(self.peer_tls)
        return self

    @property
    def peer_tls(self) -> TlsFiles | None:
        """For the channels to other services; None is plaintext."""
        if not self.peer_ca:
            return None
        return TlsFiles(
            self.peer_cert or self.tls_cert, self.peer_key or self.tls_key, self.peer_ca
        )


def _refuse_unknown_variables(cls: type[ServiceSettings]) -> None:
    known = {f"{cls.env_prefix}{name}".upper() for name in cls.model_fields}
    for name in os.environ:
        if name.upper().startswith(cls.env_prefix.upper()) and name.upper() not in known:
            print(f"{cls.program}: unknown environment variable {name}", file=sys.stderr)
            raise SystemExit(2)
