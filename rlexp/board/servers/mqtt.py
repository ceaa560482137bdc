"""MQTT 5 as a queue: a topic for each task, to which its trainer subscribes. The server stores nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from rlexp.board.messages.address import QUEUE_PASSWORD_VARIABLE, QueueAddress, tls_context, tls_problem
from rlexp.board.messages.basics import BoardError, BoardLostError
from rlexp.board.servers.carriers import ServedConnection, SessionCarrier

MAX_PACKET_BYTES: Final = 256 << 10
"""A size that servers accept; many accept no more."""
MAX_BYTES: Final = MAX_PACKET_BYTES - 1024
"""Most bytes of a message: the packet has the topic too."""
QOS: Final = 0
"""At most once: the windows repeat lost messages, and servers drop confirmed ones if a queue is full."""
_BUFFERED_BYTES: Final = 64 << 20
"""Most bytes that wait here for their receiver; more are dropped, and sent again."""
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 10.0
_KEEPALIVE_S: Final = 20
_LOGIN_REFUSED: Final = (134, 135)
"""MQTT's reason codes: bad user name or password, not authorized."""


class MqttCarrier(SessionCarrier):
    """The topic of one task; see :class:`~rlexp.board.servers.board.Carrier`."""

    def __init__(self, address: QueueAddress, task_id: str) -> None:
        topic = "/".join(filter(None, (address.path, "rlexp", task_id)))
        super().__init__(partial(_MqttConnection, address, topic), MAX_BYTES)


class _MqttConnection(ServedConnection[bytes]):
    """One connection, and the client library's thread that serves it."""

    def __init__(self, address: QueueAddress, topic: str) -> None:
        super().__init__(address)
        self._topic = topic
        self._num_bytes = 0
        self._is_connected = False
        self._is_subscribed = False
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, reconnect_on_failure=False)
        self._client.connect_timeout = _CONNECT_S
        self._client.on_connect, self._client.on_disconnect = self._on_connect, self._on_disconnect
        self._client.on_subscribe, self._client.on_message = self._on_subscribe, self._on_message
        if address.username or address.password:
            self._client.username_pw_set(address.username, address.password or None)
        if address.has_tls:
            self._client.tls_set_context(tls_context(address))
        try:
            self._client.connect(address.host, address.port, _KEEPALIVE_S, clean_start=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            lost = BoardLostError(f"the queue {address} cannot be reached: {reason}")
            raise tls_problem(address, error) or lost from error
        self._client.loop_start()

    def check(self) -> None:
        with self._changed:
            self._wait_until(lambda: self._is_connected, _ANSWER_S)

    def send(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if self._client.publish(self._topic, message, QOS).rc != paho.MQTT_ERR_SUCCESS:
                raise BoardLostError(f"the connection with the queue {self._address} has ended")

    def take(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages; the first call subscribes, and earlier messages never arrive."""
        if not self._is_subscribed:
            self._client.subscribe(self._topic, QOS)
        with self._changed:
            self._wait_until(lambda: self._is_subscribed, _ANSWER_S)
            taken = self._take(limit, timeout_s)
            self._num_bytes -= sum(map(len, taken))
            return taken

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # The client closes its last two sockets when it is collected. Without this cycle, it is collected as soon as it
        # is dropped. The parts of a cycle are collected in any order, so the sockets may go before the client.
        self._client.on_connect = self._client.on_disconnect = None
        self._client.on_subscribe = self._client.on_message = None

    def _on_connect(
        self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, properties: Properties | None
    ) -> None:
        if code.is_failure:
            self._end(self._refusal(code))
        elif getattr(properties, "MaximumPacketSize", MAX_PACKET_BYTES) < MAX_PACKET_BYTES:
            hint = f"let it take packets of {MAX_PACKET_BYTES // 1024} KiB (mosquitto: max_packet_size)"
            self._end(BoardError(f"the queue {self._address} takes smaller packets only", hint))
        else:
            with self._changed:
                self._is_connected = True
                self._changed.notify_all()

    def _on_subscribe(self, _client: Any, _data: Any, _mid: int, codes: list[ReasonCode], _properties: Any) -> None:
        if codes[0].is_failure:
            self._end(self._refusal(codes[0]))
            return
        with self._changed:
            self._is_subscribed = True
            self._changed.notify_all()

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        self._end(BoardLostError(f"the connection with the queue {self._address} has ended: {code}"))

    def _on_message(self, _client: Any, _data: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            if self._num_bytes + len(message.payload) <= _BUFFERED_BYTES:
                self._arrived.append(bytes(message.payload))
                self._num_bytes += len(message.payload)
                self._changed.notify_all()

    def _refusal(self, code: ReasonCode) -> BoardError:
        if code.value in _LOGIN_REFUSED:
            return BoardError(
                f"the queue {self._address} refuses the password or user name, or does not allow it: {code}",
                f"set {QUEUE_PASSWORD_VARIABLE}, or give {self._address.scheme}://USER:PASSWORD@HOST",
            )
        return BoardLostError(f"the queue {self._address} refuses the connection: {code}")
