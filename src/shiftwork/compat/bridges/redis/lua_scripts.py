"""Lua scripts for what must be atomic in Redis."""

from __future__ import annotations

PUBLISH = """
local known = redis.call('HGET', KEYS[2], ARGV[1])
if known then return known end
local id = redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2))
redis.call('HSET', KEYS[2], ARGV[1], id)
return id
"""
"""Write the entry of an offer unless it exists, and return its id: (stream, published; offer, fields...)."""

WITHDRAW = """
local function parts(id)
  local ms, seq = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(seq)
end
local ms, seq = parts(ARGV[2])
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
for _, group in ipairs(groups) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  if info['name'] == ARGV[1] then
    local last_ms, last_seq = parts(info['last-delivered-id'])
    if ms < last_ms or (ms == last_ms and seq <= last_seq) then return 0 end
  end
end
redis.call('XDEL', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[3])
return 1
"""
"""Remove an undelivered entry, or return 0: (stream, published; group, message id, offer)."""

TRIM = """
local groups = redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}
for _, group in ipairs(groups) do
  local info = {}
  for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
  if info['name'] == ARGV[1] then
    local oldest = redis.call('XPENDING', KEYS[1], ARGV[1])[2]
    local first = oldest or info['last-delivered-id']
    local rest = redis.call('XRANGE', KEYS[1], first, '+', 'COUNT', 1000)
    if #rest == 1000 then return 0 end
    local unread = #rest
    if not oldest and rest[1] and rest[1][1] == first then unread = unread - 1 end
    return redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', math.max(tonumber(ARGV[2]), unread))
  end
end
return 0
"""
"""Keep this many entries, and every one that the group has not acknowledged: (stream; group, how many).

Servers before 6.2 have no MINID, so unhandled entries are counted for MAXLEN. If there are too many to count, nothing
is removed.
"""

ANSWER = """
local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if not held[1] or held[1][2] ~= ARGV[3] then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 4))
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
return 1
"""
"""Answer an entry that we still hold, once: (task stream, answer's stream; group, message id, consumer, fields...)."""

REFUSE = """
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XADD', KEYS[2], '*', unpack(ARGV, 3))
return 1
"""
"""Acknowledge an entry and write another instead, once: (its stream, the other's; group, message id, fields...)."""
