"""The beginning of each script for Redis, in Lua: what the values of a board mean; see redis_values.py."""

from __future__ import annotations

from typing import Final

from rlexp.transport.boards.redis_values import EPOCH_AHEAD_MS, LONGEST_LEASE_MS, MOST_LEASE_BYTES
from rlexp.transport.task_limits import MOST_SEATS

READING: Final = (
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
"""The time, and what values are; each function returns what stands for absent where a value cannot be read."""

LEADS: Final = """
local _, leading, leader = lease(tried('GET', trainer_key))
local leads = leading == tonumber(epoch) and leader == member
"""
"""Whether the caller leads the task; needs ``trainer_key``, ``epoch`` and ``member``."""
