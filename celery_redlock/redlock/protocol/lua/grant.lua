-- PROTOCOL: GRANT
local call, owner, ttl, proposed, skew, supersedes, highest_floor = redis.call,
  ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6] or '', tonumber(ARGV[7] or 0)
local done = KEYS[3] and call('PTTL', KEYS[3]) or -2
if done ~= -2 then
  return {2, done}
end
local floor = tonumber(call('GET', KEYS[2]) or 0)
local holder = call('GET', KEYS[1])
if holder == owner then
  return {1, floor, 0}
end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local is_too_late = highest_floor > 0 and floor > highest_floor
if is_too_late or holder and (supersedes == '' or holder ~= supersedes) then
  return {0, holder or '', holder and call('PTTL', KEYS[1]) or 0, floor, now}
end
if floor >= 9007199254740992 then
  -- Beyond 2^53 one more is the same number again.
  return redis.error_reply('ERR the floor is out of range')
end
local token = math.max(floor + 1, math.min(math.max(proposed, now - skew), now + skew))
local lasts = ttl + ARGV[5]
if token > now then
  -- Longer for a token that is ahead of this clock, by a day at most: without a floor, the next
  -- token is taken from the clock.
  lasts = lasts + math.ceil(math.min((token - now) / 1000, 86400000))
end
-- '%.0f': tostring would print a number of 16 digits as 1.795e+15
local digits = token == proposed and ARGV[3] or string.format('%.0f', token)
call('SET', KEYS[1], owner, 'PX', ttl)
call('SET', KEYS[2], digits, 'PX', lasts)
-- Not a table, unless it is needed: making and sending that takes as long as a command.
return holder and {1, token, 1} or digits
