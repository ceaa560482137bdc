"""Atomic operations of a Redis, in Lua: leases and fencing by the server's clock, so no other clock is compared.

Keys that a script only reads are arguments: an access list can then give actors the right to read them only. A lease is
the text ``EXPIRES_MS EPOCH MEMBER``. Epochs begin at the server's time in ms, so a server that lost its data gives out
none twice. The key ``epochs`` has the highest epoch of each seat that its trainer knows; only trainers write it.

Others may write anything into the keys that their role writes. Every script treats unreadable values as absent, and
PUBLISH, which the trainer runs with each heartbeat, removes them.

Each Role has the access rules (ACL) for its scripts. The server checks commands in a script against the rules of the
caller, so each role has the commands and keys of its scripts. It can use them without the scripts too. So a role has
only the one command with which its scripts write a key: it cannot change the key's type or remove it. Actors run the
server's scripts by hash and cannot load others; trainers and clients load them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from rlexp.board.messages.basics import MOST_SEATS
from rlexp.board.servers.redis_values import EPOCH_AHEAD_MS, LONGEST_LEASE_MS, MOST_LEASE_BYTES

_READING: Final = (
    r"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number) return string.format('%.0f', number) end
-- A key that holds another type counts as absent; any other error ends the script.
local function tried(...)
  local answer = redis.pcall(...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then return nil end
  return redis.call(...)
end
local function number(value)
  if type(value) ~= 'string' or #value > 16 or not string.match(value, '^%-?%d+$') then return nil end
  return tonumber(value)
end
local function epoch_of(value)
  local found = number(value)
  return found and found >= 0 and found <= now + EPOCH_AHEAD_MS and found or 0
end
local function lease(value)
  if type(value) ~= 'string' or #value > LEASE_BYTES then return 0, 0, '', false end
  local expires, epoch, member = string.match(value, '^(%d+) (%d+) ([\32-\126]*)$')
  if not expires or #expires > 16 or #epoch > 16 then return 0, 0, '', false end
  expires, epoch = tonumber(expires), tonumber(epoch)
  if expires > now + LEASE_MS or epoch > now + EPOCH_AHEAD_MS then return 0, 0, '', false end
  return expires, epoch, member, true
end
local STATUSES = {QUEUED = true, RUNNING = true, ENDED = true, FAILED = true, CANCELLED = true}
local function status_of(value) return STATUSES[value] and value end
local function seats_of(value)
  local found = number(value)
  return found and found >= 0 and found <= MOST_SEATS and found or 0
end
""".replace("EPOCH_AHEAD_MS", str(EPOCH_AHEAD_MS))
    .replace("LEASE_MS", str(LONGEST_LEASE_MS))
    .replace("LEASE_BYTES", str(MOST_LEASE_BYTES))
    .replace("MOST_SEATS", str(MOST_SEATS))
)
"""The time, and parsers of values; each returns a value for absent if it cannot read one."""

_LEADS: Final = """
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
local _, leading, leader = lease(tried('GET', trainer_key))
local leads = leading == tonumber(epoch) and leader == member
"""
"""Whether the caller leads the task, for scripts whose first key is the task's trainer."""


def _script(body: str) -> str:
    return _READING + body


def _script_of_trainer(body: str) -> str:
    return _READING + _LEADS + body


ANNOUNCE: Final = _script("""
-- KEYS: task, epochs
-- ARGV: name, seats, description, file, seconds that keys are kept, then index and epoch of seats
for _, key in ipairs(KEYS) do
  if tried('HGET', key, '') == nil then redis.call('UNLINK', key) end
end
local status = status_of(redis.call('HGET', KEYS[1], 'status'))
if not status then
  redis.call('HSET', KEYS[1], 'name', ARGV[1], 'seats', ARGV[2], 'description', ARGV[3], 'file', ARGV[4],
    'submitted', ARGV[4] == '' and '0' or '1', 'status', 'RUNNING', 'reason', '', 'announced', text(now),
    'weights', '-1')
elseif status == 'QUEUED' then
  redis.call('HSET', KEYS[1], 'seats', ARGV[2], 'description', ARGV[3], 'status', 'RUNNING')
end
for i = 6, #ARGV, 2 do
  local known = epoch_of(redis.call('HGET', KEYS[2], ARGV[i]))
  if tonumber(ARGV[i + 1]) > known then redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return 1""")

SUBMIT: Final = _script("""
-- KEYS: task   ARGV: name, seats, description, file, seconds that keys are kept
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'seats', ARGV[2], 'description', ARGV[3], 'file', ARGV[4],
  'submitted', '1', 'status', 'QUEUED', 'reason', '', 'announced', text(now), 'weights', '-1')
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1""")

CANCEL: Final = _script("""
-- KEYS: task   ARGV: reason, seconds that keys are kept
local status = tried('HGET', KEYS[1], 'status')
if status ~= 'QUEUED' and status ~= 'RUNNING' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'CANCELLED', 'reason', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1""")

ROWS: Final = _script("""
-- ARGV: rows, the first number that is wanted. Each row is the text NUMBER ROW
local first = number(string.match(tried('LINDEX', ARGV[1], 0) or '0', '^%d+')) or 0
local skipped = tonumber(ARGV[2]) - first
if skipped < 0 or skipped > (tried('LLEN', ARGV[1]) or 0) then skipped = 0 end
return tried('LRANGE', ARGV[1], text(skipped), -1) or {}""")

CLAIM: Final = _script("""
-- KEYS: seats   ARGV: task, member, lease in ms, banned, the member's actor, epochs
local task = tried('HMGET', ARGV[1], 'status', 'seats') or {}
if task[1] ~= 'RUNNING' then return {-1, '0'} end
if tried('HGET', ARGV[4], ARGV[5]) then return {-2, '0'} end
for i = 0, seats_of(task[2]) - 1 do
  local expires, held = lease(tried('HGET', KEYS[1], i))
  if expires <= now then
    local epoch = text(math.max(epoch_of(tried('HGET', ARGV[6], i)) + 1, held + 1, now))
    local taken = tried('HSET', KEYS[1], i, text(now + ARGV[3]) .. ' ' .. epoch .. ' ' .. ARGV[2])
    if taken then return {i, epoch} end
    return {-1, '0'}
  end
end
return {-1, '0'}""")

BEAT: Final = _script("""
-- KEYS: seats   ARGV: task, got, queue, trainer, epochs, seat, epoch, member, lease in ms
local task = tried('HMGET', ARGV[1], 'status', 'weights') or {}
if not status_of(task[1]) then return {'unknown'} end
local epoch = tonumber(ARGV[7])
local _, held, member = lease(tried('HGET', KEYS[1], ARGV[6]))
local newest = math.max(epoch_of(tried('HGET', ARGV[5], ARGV[6])), held)
if newest > epoch or (held == epoch and member ~= ARGV[8]) then return {'fenced'} end
local kept = tried('HSET', KEYS[1], ARGV[6], text(now + ARGV[9]) .. ' ' .. ARGV[7] .. ' ' .. ARGV[8])
if not kept then return {'unknown'} end
local got = number(tried('HGET', ARGV[2], ARGV[6] .. ':' .. ARGV[7])) or -1
local led = lease(tried('GET', ARGV[4])) > now
local weights = math.max(number(task[2]) or -1, -1)
return {task[1], text(weights), text(got), tried('LLEN', ARGV[3]) or 0, led and 1 or 0}""")

RELEASE: Final = _script("""
-- KEYS: seats   ARGV: seat, epoch, member
local _, epoch, member = lease(tried('HGET', KEYS[1], ARGV[1]))
if epoch == tonumber(ARGV[2]) and member == ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[1], '0 ' .. ARGV[2] .. ' ' .. ARGV[3])
end
return 1""")

BAN: Final = _script_of_trainer("""
-- KEYS: trainer, seats, epochs, banned   ARGV: epoch, member, actor, seconds that keys are kept
if not leads then return 0 end
for i = 2, #KEYS do
  if tried('HGET', KEYS[i], '') == nil then redis.call('UNLINK', KEYS[i]) end
end
redis.call('HSET', KEYS[4], ARGV[3], text(now))
local seats = redis.call('HGETALL', KEYS[2])
for i = 1, #seats, 2 do
  local _, held, holder = lease(seats[i + 1])
  if string.match(holder, '^[^/]*') == ARGV[3] then
    local next = text(math.max(epoch_of(redis.call('HGET', KEYS[3], seats[i])) + 1, held + 1, now))
    redis.call('HSET', KEYS[3], seats[i], next)
    redis.call('HSET', KEYS[2], seats[i], '0 ' .. next .. ' ')
  end
end
redis.call('EXPIRE', KEYS[4], ARGV[4])
return 1""")

LEAD: Final = _script("""
-- KEYS: trainer   ARGV: task, member, lease in ms, epoch that was given before or 0, seconds that keys are kept
local status = status_of(tried('HGET', ARGV[1], 'status'))
if not status then return '0' end
local expires, epoch, member = lease(tried('GET', KEYS[1]))
local before = tonumber(ARGV[4])
local same = epoch == before and member == ARGV[2]
if (expires > now and not same and epoch >= before) or (before > 0 and epoch > before) then return '0' end
if status ~= 'QUEUED' and status ~= 'RUNNING' and not same then return '0' end
local given = text(before > 0 and before or math.max(epoch + 1, now))
redis.call('SET', KEYS[1], text(now + ARGV[3]) .. ' ' .. given .. ' ' .. ARGV[2], 'EX', ARGV[5])
return given""")

PUT_BLOB: Final = _script_of_trainer("""
-- KEYS: trainer, the blob as it was written, its name   ARGV: epoch, member, seconds that keys are kept
if not leads then redis.call('UNLINK', KEYS[2]) return 0 end
redis.call('RENAME', KEYS[2], KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1""")

DROP_BLOB: Final = _script_of_trainer("""
-- KEYS: trainer, blob   ARGV: epoch, member
if leads then redis.call('UNLINK', KEYS[2]) end
return 1""")

PUT_ROWS: Final = _script_of_trainer("""
-- KEYS: trainer, rows   ARGV: epoch, member, seconds that keys are kept, rows that are kept, then the new ones
if not leads then return 0 end
local last = tried('LINDEX', KEYS[2], -1)
if last == nil then redis.call('UNLINK', KEYS[2]) end
local newest = number(string.match(last or '', '^%d+')) or -1
for i = 5, #ARGV do
  redis.call('RPUSH', KEYS[2], text(newest + i - 4) .. ' ' .. ARGV[i])
end
redis.call('LTRIM', KEYS[2], -ARGV[4], -1)
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1""")

GIVE_UP: Final = _script_of_trainer("""
-- KEYS: trainer   ARGV: epoch, member, seconds that keys are kept
if leads then redis.call('SET', trainer_key, '0 ' .. epoch .. ' ' .. member, 'EX', ARGV[3]) end
return 1""")

FINISH: Final = _script_of_trainer("""
-- KEYS: trainer, task, queue   ARGV: epoch, member, status, reason, seconds that keys are kept
if not leads then return 0 end
local status = tried('HGET', KEYS[2], 'status')
if status == 'QUEUED' or status == 'RUNNING' then
  redis.call('HSET', KEYS[2], 'status', ARGV[3], 'reason', ARGV[4])
end
redis.call('SET', trainer_key, '0 ' .. epoch .. ' ' .. member)
redis.call('UNLINK', KEYS[3])
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[5]) end
return 1""")

PUBLISH: Final = _script_of_trainer("""
-- KEYS: trainer, task, got, figures, seats, epochs, queue
-- ARGV: epoch, member, lease in ms, seconds that keys are kept, weights, figures, name, seats, description, file,
--   then seat, epoch, number of each got. Without a name (''), this trainer has not announced the task.
-- Returns the status, the time, what is queued, the seats, and the names of what could not be read.
local status = status_of(tried('HGET', KEYS[2], 'status'))
-- Epochs only grow: a lower one is no other trainer's.
if not status or leading < tonumber(epoch) then return {'unknown'} end
if not leads then return {'fenced'} end
local mended = {}
local function mend(name) if #mended < 20 then mended[#mended + 1] = string.sub(name, 1, 40) end end
for name, i in pairs({got = 3, seats = 5, epochs = 6}) do
  if tried('HGET', KEYS[i], '') == nil then redis.call('UNLINK', KEYS[i]) mend(name) end
end
if tried('LLEN', KEYS[7]) == nil then redis.call('UNLINK', KEYS[7]) mend('in:0') end

local task = redis.call('HMGET', KEYS[2], 'name', 'seats', 'description', 'file', 'announced')
if ARGV[7] ~= '' then
  for i, field in ipairs({'name', 'seats', 'description', 'file'}) do
    if task[i] ~= ARGV[6 + i] then redis.call('HSET', KEYS[2], field, ARGV[6 + i]) mend('task ' .. field) end
  end
  task[2] = ARGV[8]
  if status == 'QUEUED' then
    status = 'RUNNING'
    redis.call('HSET', KEYS[2], 'status', status)
  end
end
if (number(task[5]) or -1) < 0 then redis.call('HSET', KEYS[2], 'announced', text(now)) mend('task announced') end

-- Each hash is read at once: there may be thousands of seats.
local epochs, known, found = {}, {}, {}
local fields = redis.call('HGETALL', KEYS[6])
for i = 1, #fields, 2 do epochs[fields[i]] = epoch_of(fields[i + 1]) end
local seats, num_seats = redis.call('HGETALL', KEYS[5]), seats_of(task[2])
for i = 1, #seats, 2 do
  local index, value = number(seats[i]), seats[i + 1]
  local _, held, _, is_lease = lease(value)
  if not is_lease or not index or tostring(index) ~= seats[i] or index < 0 or index >= num_seats then
    redis.call('HDEL', KEYS[5], seats[i])
    mend('seats ' .. seats[i])
  else
    found[#found + 1], found[#found + 2] = seats[i], value
    if held > (epochs[seats[i]] or 0) then
      redis.call('HSET', KEYS[6], seats[i], text(held))
      epochs[seats[i]] = held
    end
  end
end

redis.call('SET', trainer_key, text(now + ARGV[3]) .. ' ' .. epoch .. ' ' .. member)
redis.call('HSET', KEYS[2], 'weights', ARGV[5])
redis.call('SET', KEYS[4], ARGV[6])
fields = redis.call('HGETALL', KEYS[3])
local newest = {}
for i = 11, #ARGV, 3 do newest[ARGV[i]] = epochs[ARGV[i]] or 0 end
for i = 1, #fields, 2 do
  local seat, of = string.match(fields[i], '^(%d+):(%d+)$')
  local superseded = seat and newest[seat] and epoch_of(of) < newest[seat]
  known[fields[i]] = number(fields[i + 1])
  if superseded or not seat or not known[fields[i]] then redis.call('HDEL', KEYS[3], fields[i]) end
end
for i = 11, #ARGV, 3 do
  local field = ARGV[i] .. ':' .. ARGV[i + 1]
  if newest[ARGV[i]] <= tonumber(ARGV[i + 1]) and tonumber(ARGV[i + 2]) > (known[field] or -1) then
    redis.call('HSET', KEYS[3], field, ARGV[i + 2])
  end
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[4]) end
return {status, text(now), redis.call('LLEN', KEYS[7]), found, mended}""")
"""It returns at most 20 names of values that it removed or wrote again."""

ALL: Final = (
    *(ANNOUNCE, SUBMIT, CANCEL, CLAIM, BEAT, RELEASE, BAN, LEAD, PUBLISH),
    *(PUT_BLOB, DROP_BLOB, PUT_ROWS, ROWS, GIVE_UP, FINISH),
)
"""All scripts; a server is given all of them at once."""

OLDEST: Final = (6, 2)
"""The first version of Redis that can be a board."""
FIRST_WITH_READ_ONLY_KEYS: Final = (7, 0)
"""The first version of Redis that tells keys that may be read from keys that may be written."""
_CONNECTION: Final = ("auth", "hello", "ping", "select", "time", "multi", "discard", "acl|whoami")
_READS: Final = ("get", "hget", "hmget", "hvals", "hgetall", "exists", "smembers", "llen", "lrange", "lindex")
_WRITES: Final = ("set", "hset", "hdel", "sadd", "srem", "rpush", "ltrim", "expire", "unlink")


@dataclass(frozen=True)
class Role:
    """A user of the server, and its rights."""

    name: str
    keys: tuple[str, ...]
    """Patterns of keys with their rights, as Redis 7.0 reads them: ``%R~`` to read, ``%W~`` to write, ``%RW~`` both."""
    commands: tuple[str, ...]
    """Commands for all of these keys, each within its rights."""
    more: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further keys, each with the only commands that are allowed for it."""

    def rules(self, password: str | None, version: tuple[int, int] = FIRST_WITH_READ_ONLY_KEYS) -> str:
        """Return the rules of ``ACL SETUSER`` after the user's name, with the hash of ``password``.

        None: with ``PASSWORD_OF_...`` in its place. Before FIRST_WITH_READ_ONLY_KEYS, a key that may be read may also
        be written, with all commands of the role.
        """
        template = f">PASSWORD_OF_{self.name.upper()}"
        secret = template if password is None else f"#{sha256(password.encode()).hexdigest()}"
        begin = ["reset", "on", secret, "resetchannels"]
        if version < FIRST_WITH_READ_ONLY_KEYS:
            all_keys = (*self.keys, *(key for key, _ in self.more))
            keys = dict.fromkeys("~" + key.partition("~")[2] for key in all_keys)
            commands = dict.fromkeys((*self.commands, *(command for _, own in self.more for command in own)))
            return " ".join([*begin, *keys, "-@all", *_added(commands)])
        more = (f"({' '.join([key, *_added(commands)])})" for key, commands in self.more)
        return " ".join([*begin, *self.keys, "-@all", *_added(self.commands), *more])


def _added(commands: Iterable[str]) -> list[str]:
    return [f"+{command}" for command in commands]


ACTOR: Final = Role(
    "actor",
    (
        "%R~rlexp:tasks",
        "%R~rlexp:{*}:task",
        "%R~rlexp:{*}:trainer",
        "%R~rlexp:{*}:figures",
        "%R~rlexp:{*}:banned",
        "%R~rlexp:{*}:blob:weights-*",
        "%R~rlexp:{*}:epochs",
        "%R~rlexp:{*}:got",
        "%RW~rlexp:{*}:seats",
    ),
    (*_CONNECTION, "evalsha", "get", "hget", "hmget", "hgetall", "smembers", "hset"),
    (("%W~rlexp:{*}:in:0", ("llen", "rpush")),),
)
"""Plays: takes seats, sends fragments, reads tasks and weights."""
TRAINER: Final = Role(
    "trainer",
    ("%RW~rlexp:*",),
    (
        *_CONNECTION,
        *_READS,
        *_WRITES,
        *("evalsha", "script|load", "info", "rename", "lpop", "blpop"),
    ),
)
"""Trains: it has all rights on a board's own keys."""
CLIENT: Final = Role(
    "client",
    ("%R~rlexp:*",),
    (*_CONNECTION, *_READS, "evalsha", "script|load", "info"),
    (("%W~rlexp:tasks", ("sadd",)), ("%RW~rlexp:{*}:task", ("evalsha", "hset", "expire"))),
)
"""Submits and cancels tasks, reads their state and their results."""
ROLES: Final = (ACTOR, TRAINER, CLIENT)
