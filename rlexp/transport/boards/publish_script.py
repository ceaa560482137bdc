"""The script with which a trainer keeps its task, makes its news known, and mends what others have written there."""

from __future__ import annotations

from typing import Final

from rlexp.transport.boards.script_values import LEADS, READING

_MOST_MENDED: Final = 20
"""Names of what was removed or written again, of one call."""

PUBLISH: Final = (
    READING
    + """
-- KEYS: trainer, task, got, figures, seats, epochs, queue
-- ARGV: epoch, member, lease in ms, seconds that keys are kept, weights, figures, name, seats, description, file,
--   then seat, epoch, number of each got. Without a name (''), this trainer has not announced the task.
-- Returns the status, the time, what is queued, the seats, and the names of what could not be read.
local trainer_key, epoch, member = KEYS[1], ARGV[1], ARGV[2]
local status = status_of(tried('HGET', KEYS[2], 'status'))
local _, given = lease(tried('GET', trainer_key))
-- Epochs only grow: a lower one is no other trainer's.
if not status or given < tonumber(epoch) then return {'unknown'} end
"""
    + LEADS
    + """
if not leads then return {'fenced'} end
local mended = {}
local function mend(name) if #mended < MOST_MENDED then mended[#mended + 1] = string.sub(name, 1, 40) end end
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
return {status, text(now), redis.call('LLEN', KEYS[7]), found, mended}""".replace("MOST_MENDED", str(_MOST_MENDED))
)
