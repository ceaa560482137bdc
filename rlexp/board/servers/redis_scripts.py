"""What a Redis does at once, in Lua: leases and fencing by the server's clock, so no other clock is ever compared.

Keys that a script only reads are arguments: an access list can then give actors the right to read them only.
A lease is the text ``EXPIRES_MS EPOCH MEMBER``. Epochs begin at the server's time in ms: a server that has lost its
data gives out none a second time. The key ``epochs`` has the highest epoch of each seat that its trainer knows of, and
only trainers write it.

Others may write anything into the keys that their role writes: what cannot be read counts as absent in every script,
and PUBLISH, which the trainer runs with each beat, removes it.
"""

from __future__ import annotations

from typing import Final

from rlexp.board.servers.redis_values import LEADS, PUBLISH, READING

ANNOUNCE: Final = (
    READING
    + """
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
return 1"""
)


SUBMIT: Final = (
    READING
    + """
-- KEYS: task   ARGV: name, seats, description, file, seconds that keys are kept
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'seats', ARGV[2], 'description', ARGV[3], 'file', ARGV[4],
  'submitted', '1', 'status', 'QUEUED', 'reason', '', 'announced', text(now), 'weights', '-1')
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1"""
)

CANCEL: Final = (
    READING
    + """
-- KEYS: task   ARGV: reason, seconds that keys are kept
local status = tried('HGET', KEYS[1], 'status')
if status ~= 'QUEUED' and status ~= 'RUNNING' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'CANCELLED', 'reason', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1"""
)


ROWS: Final = (
    READING
    + """
-- ARGV: rows, the first number that is wanted. Each row is the text NUMBER ROW
local first = number(string.match(tried('LINDEX', ARGV[1], 0) or '0', '^%d+')) or 0
local skipped = tonumber(ARGV[2]) - first
if skipped < 0 or skipped > (tried('LLEN', ARGV[1]) or 0) then skipped = 0 end
return tried('LRANGE', ARGV[1], text(skipped), -1) or {}"""
)


CLAIM: Final = (
    READING
    + """
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
return {-1, '0'}"""
)


BEAT: Final = (
    READING
    + """
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
return {task[1], text(weights), text(got), tried('LLEN', ARGV[3]) or 0, led and 1 or 0}"""
)


RELEASE: Final = (
    READING
    + """
-- KEYS: seats   ARGV: seat, epoch, member
local _, epoch, member = lease(tried('HGET', KEYS[1], ARGV[1]))
if epoch == tonumber(ARGV[2]) and member == ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[1], '0 ' .. ARGV[2] .. ' ' .. ARGV[3])
end
return 1"""
)


BAN: Final = (
    READING
    + """
-- KEYS: trainer, seats, epochs, banned   ARGV: epoch, member, actor, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + LEADS
    + """
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
return 1"""
)

LEAD: Final = (
    READING
    + """
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
return given"""
)


PUT_BLOB: Final = (
    READING
    + """
-- KEYS: trainer, the blob as it was written, its name   ARGV: epoch, member, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + LEADS
    + """
if not leads then redis.call('UNLINK', KEYS[2]) return 0 end
redis.call('RENAME', KEYS[2], KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1"""
)

DROP_BLOB: Final = (
    READING
    + """
-- KEYS: trainer, blob   ARGV: epoch, member
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + LEADS
    + """
if leads then redis.call('UNLINK', KEYS[2]) end
return 1"""
)

PUT_ROWS: Final = (
    READING
    + """
-- KEYS: trainer, rows   ARGV: epoch, member, seconds that keys are kept, rows that are kept, then the new ones
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + LEADS
    + """
if not leads then return 0 end
local last = tried('LINDEX', KEYS[2], -1)
if last == nil then redis.call('UNLINK', KEYS[2]) end
local newest = number(string.match(last or '', '^%d+')) or -1
for i = 5, #ARGV do
  redis.call('RPUSH', KEYS[2], text(newest + i - 4) .. ' ' .. ARGV[i])
end
redis.call('LTRIM', KEYS[2], -ARGV[4], -1)
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1"""
)

GIVE_UP: Final = (
    READING
    + """
-- KEYS: trainer   ARGV: epoch, member, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + LEADS
    + """
if leads then redis.call('SET', trainer_key, '0 ' .. epoch .. ' ' .. member, 'EX', ARGV[3]) end
return 1"""
)

FINISH: Final = (
    READING
    + """
-- KEYS: trainer, task, queue   ARGV: epoch, member, status, reason, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + LEADS
    + """
if not leads then return 0 end
local status = tried('HGET', KEYS[2], 'status')
if status == 'QUEUED' or status == 'RUNNING' then
  redis.call('HSET', KEYS[2], 'status', ARGV[3], 'reason', ARGV[4])
end
redis.call('SET', trainer_key, '0 ' .. epoch .. ' ' .. member)
redis.call('UNLINK', KEYS[3])
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[5]) end
return 1"""
)

ALL: Final = (
    *(ANNOUNCE, SUBMIT, CANCEL, CLAIM, BEAT, RELEASE, BAN, LEAD, PUBLISH),
    *(PUT_BLOB, DROP_BLOB, PUT_ROWS, ROWS, GIVE_UP, FINISH),
)
"""A server is given all of them at once."""
