"""What a Redis does at once, in Lua: leases and fencing by the server's clock, so no other clock is ever compared.

Keys that a script only reads are arguments: an access list can then give actors the right to read them only.
A lease is the text ``EXPIRES_MS EPOCH MEMBER``. Epochs begin at the server's time in ms: a server that has lost its
data gives out none a second time.
"""

from __future__ import annotations

from typing import Final

_CLOCK: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number) return string.format('%.0f', number) end
local function lease(value)
  if not value then return 0, 0, '' end
  local expires, epoch, member = string.match(value, '^(%d+) (%d+) (.*)$')
  return tonumber(expires or 0), tonumber(epoch or 0), member or ''
end
"""

_LEADS: Final = """
local _, leading, leader = lease(redis.call('GET', trainer_key))
local leads = leading == tonumber(epoch) and leader == member
"""

ANNOUNCE: Final = (
    _CLOCK
    + """
-- KEYS: task, epochs
-- ARGV: name, seats, description, file, seconds that keys are kept, then index and epoch of seats
local status = redis.call('HGET', KEYS[1], 'status')
if not status then
  redis.call('HSET', KEYS[1], 'name', ARGV[1], 'seats', ARGV[2], 'description', ARGV[3], 'file', ARGV[4],
    'submitted', ARGV[4] == '' and '0' or '1', 'status', 'RUNNING', 'reason', '', 'announced', text(now),
    'weights', '-1')
elseif status == 'QUEUED' then
  redis.call('HSET', KEYS[1], 'seats', ARGV[2], 'description', ARGV[3], 'status', 'RUNNING')
end
for i = 6, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[2], ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > known then redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('EXPIRE', KEYS[2], ARGV[5])
return 1"""
)

SUBMIT: Final = (
    _CLOCK
    + """
-- KEYS: task   ARGV: name, seats, description, file, seconds that keys are kept
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'name', ARGV[1], 'seats', ARGV[2], 'description', ARGV[3], 'file', ARGV[4],
  'submitted', '1', 'status', 'QUEUED', 'reason', '', 'announced', text(now), 'weights', '-1')
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1"""
)

CANCEL: Final = """
-- KEYS: task   ARGV: reason, seconds that keys are kept
local status = redis.call('HGET', KEYS[1], 'status')
if status ~= 'QUEUED' and status ~= 'RUNNING' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'CANCELLED', 'reason', ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1"""

ROWS: Final = """
-- ARGV: rows, the first number that is wanted. Each row is the text NUMBER ROW
local first = tonumber(string.match(redis.call('LINDEX', ARGV[1], 0) or '0', '^%d+'))
local skipped = tonumber(ARGV[2]) - first
if skipped > redis.call('LLEN', ARGV[1]) then skipped = 0 end
return redis.call('LRANGE', ARGV[1], math.max(skipped, 0), -1)"""

CLAIM: Final = (
    _CLOCK
    + """
-- KEYS: seats, epochs, got   ARGV: task, member, lease in ms
local task = redis.call('HMGET', ARGV[1], 'status', 'seats')
if task[1] ~= 'RUNNING' then return {-1, '0'} end
for i = 0, tonumber(task[2]) - 1 do
  local expires = lease(redis.call('HGET', KEYS[1], i))
  if expires <= now then
    local before = redis.call('HGET', KEYS[2], i) or '0'
    local epoch = text(math.max(tonumber(before) + 1, now))
    redis.call('HDEL', KEYS[3], i .. ':' .. before)
    redis.call('HSET', KEYS[2], i, epoch)
    redis.call('HSET', KEYS[1], i, text(now + ARGV[3]) .. ' ' .. epoch .. ' ' .. ARGV[2])
    return {i, epoch}
  end
end
return {-1, '0'}"""
)

BEAT: Final = (
    _CLOCK
    + """
-- KEYS: seats, epochs   ARGV: task, got, queue, trainer, seat, epoch, member, lease in ms
local task = redis.call('HMGET', ARGV[1], 'status', 'weights')
if not task[1] then return {'unknown'} end
local epoch = tonumber(ARGV[6])
local newest = tonumber(redis.call('HGET', KEYS[2], ARGV[5]) or '0')
local _, held, member = lease(redis.call('HGET', KEYS[1], ARGV[5]))
if newest > epoch or (held == epoch and member ~= ARGV[7]) then return {'fenced'} end
if newest < epoch then redis.call('HSET', KEYS[2], ARGV[5], ARGV[6]) end
redis.call('HSET', KEYS[1], ARGV[5], text(now + ARGV[8]) .. ' ' .. ARGV[6] .. ' ' .. ARGV[7])
local got = redis.call('HGET', ARGV[2], ARGV[5] .. ':' .. ARGV[6]) or '-1'
local led = lease(redis.call('GET', ARGV[4])) > now
return {task[1], task[2], got, redis.call('LLEN', ARGV[3]), led and 1 or 0}"""
)

RELEASE: Final = (
    _CLOCK
    + """
-- KEYS: seats   ARGV: seat, epoch, member
local _, epoch, member = lease(redis.call('HGET', KEYS[1], ARGV[1]))
if epoch == tonumber(ARGV[2]) and member == ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[1], '0 ' .. ARGV[2] .. ' ' .. ARGV[3])
end
return 1"""
)

LEAD: Final = (
    _CLOCK
    + """
-- KEYS: trainer   ARGV: task, member, lease in ms, epoch that was given before or 0, seconds that keys are kept
local status = redis.call('HGET', ARGV[1], 'status')
if not status then return '0' end
local expires, epoch, member = lease(redis.call('GET', KEYS[1]))
local before = tonumber(ARGV[4])
local same = epoch == before and member == ARGV[2]
if (expires > now and not same) or (before > 0 and epoch > before) then return '0' end
if status ~= 'QUEUED' and status ~= 'RUNNING' and not same then return '0' end
local given = text(before > 0 and before or math.max(epoch + 1, now))
redis.call('SET', KEYS[1], text(now + ARGV[3]) .. ' ' .. given .. ' ' .. ARGV[2], 'EX', ARGV[5])
return given"""
)

PUBLISH: Final = (
    _CLOCK
    + """
-- KEYS: trainer, task, got, figures, seats, epochs, queue
-- ARGV: epoch, member, lease in ms, seconds that keys are kept, weights, figures, then seat, epoch, number of each got
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
local status = redis.call('HGET', KEYS[2], 'status')
if not status or redis.call('EXISTS', trainer_key) == 0 then return {'unknown'} end
"""
    + _LEADS
    + """
if not leads then return {'fenced'} end
redis.call('SET', trainer_key, text(now + ARGV[3]) .. ' ' .. epoch .. ' ' .. member)
redis.call('HSET', KEYS[2], 'weights', ARGV[5])
redis.call('SET', KEYS[4], ARGV[6])
for i = 7, #ARGV, 3 do
  local newest = tonumber(redis.call('HGET', KEYS[6], ARGV[i]) or '0')
  local field = ARGV[i] .. ':' .. ARGV[i + 1]
  local known = tonumber(redis.call('HGET', KEYS[3], field) or '-1')
  if newest <= tonumber(ARGV[i + 1]) and tonumber(ARGV[i + 2]) > known then
    redis.call('HSET', KEYS[3], field, ARGV[i + 2])
  end
end
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[4]) end
return {status, text(now), redis.call('LLEN', KEYS[7]), redis.call('HGETALL', KEYS[5])}"""
)

PUT_BLOB: Final = (
    _CLOCK
    + """
-- KEYS: trainer, the blob as it was written, its name   ARGV: epoch, member, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + _LEADS
    + """
if not leads then redis.call('UNLINK', KEYS[2]) return 0 end
redis.call('RENAME', KEYS[2], KEYS[3])
redis.call('EXPIRE', KEYS[3], ARGV[3])
return 1"""
)

DROP_BLOB: Final = (
    _CLOCK
    + """
-- KEYS: trainer, blob   ARGV: epoch, member
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + _LEADS
    + """
if leads then redis.call('UNLINK', KEYS[2]) end
return 1"""
)

PUT_ROWS: Final = (
    _CLOCK
    + """
-- KEYS: trainer, rows   ARGV: epoch, member, seconds that keys are kept, rows that are kept, then the new ones
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + _LEADS
    + """
if not leads then return 0 end
local newest = tonumber(string.match(redis.call('LINDEX', KEYS[2], -1) or '-1', '^-?%d+'))
for i = 5, #ARGV do
  redis.call('RPUSH', KEYS[2], text(newest + i - 4) .. ' ' .. ARGV[i])
end
redis.call('LTRIM', KEYS[2], -ARGV[4], -1)
redis.call('EXPIRE', KEYS[2], ARGV[3])
return 1"""
)

GIVE_UP: Final = (
    _CLOCK
    + """
-- KEYS: trainer   ARGV: epoch, member, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + _LEADS
    + """
if leads then redis.call('SET', trainer_key, '0 ' .. epoch .. ' ' .. member, 'EX', ARGV[3]) end
return 1"""
)

FINISH: Final = (
    _CLOCK
    + """
-- KEYS: trainer, task, queue   ARGV: epoch, member, status, reason, seconds that keys are kept
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
"""
    + _LEADS
    + """
if not leads then return 0 end
local status = redis.call('HGET', KEYS[2], 'status')
if status == 'QUEUED' or status == 'RUNNING' then
  redis.call('HSET', KEYS[2], 'status', ARGV[3], 'reason', ARGV[4])
end
redis.call('SET', trainer_key, '0 ' .. epoch .. ' ' .. member)
redis.call('UNLINK', KEYS[3])
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, ARGV[5]) end
return 1"""
)
