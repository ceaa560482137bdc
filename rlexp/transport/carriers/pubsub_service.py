"""The service of Pub/Sub: its clients, and its errors as boards' users know them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions

from rlexp.transport.board_errors import BoardError, BoardLostError

EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
_LOST: Final = (
    exceptions.ServerError,
    exceptions.TooManyRequests,
    exceptions.Aborted,
    exceptions.Cancelled,
    auth_exceptions.TransportError,
    OSError,
)


def connected_client(kind: Any) -> Any:
    """Return a client of ``kind``: of the emulator, if one is named, or of Google, with the default credentials."""
    emulator = os.environ.get(EMULATOR_VARIABLE)
    if not emulator:
        return kind()
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return kind(transport=kind.get_transport_class("grpc")(channel=grpc.insecure_channel(emulator, options)))


@contextmanager
def translated_errors(topic: str) -> Iterator[None]:
    """Raise BoardLostError for what may pass, and BoardError for what the user has to mend."""
    try:
        yield
    except exceptions.NotFound as error:
        name = topic.rpartition("/")[2]
        raise BoardError(f"there is no {topic}", f"create it: gcloud pubsub topics create {name}") from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise BoardError(
            f"Pub/Sub does not allow these credentials to use {topic}",
            "an actor needs roles/pubsub.publisher on the topic, a trainer roles/pubsub.editor in the project",
        ) from error
    except auth_exceptions.DefaultCredentialsError as error:
        raise BoardError(
            "there are no credentials for Pub/Sub",
            "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS with a service account's file",
        ) from error
    except _LOST as error:
        raise BoardLostError(f"Pub/Sub cannot be reached: {type(error).__name__}") from error
    except (exceptions.GoogleAPICallError, auth_exceptions.GoogleAuthError) as error:
        raise BoardError(f"Pub/Sub answers with an error: {type(error).__name__}") from error
