-- PROTOCOL: GRANT
local owner, ttl, proposed, skew, floor_ttl, supersedes, highest_floor =
  ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7] or 0)
local done = KEYS[3] and redis.call('PTTL', KEYS[3]) or -2
if done ~= -2 then
  return {2, done}
end
local floor = tonumber(redis.call('GET', KEYS[2]) or '0')
local holder = redis.call('GET', KEYS[1])
if holder and holder == owner then
  return {1, floor, 0}
end
local is_too_late = highest_floor > 0 and floor > highest_floor
if is_too_late or holder and (supersedes == '' or holder ~= supersedes) then
  return {0, holder or '', holder and redis.call('PTTL', KEYS[1]) or 0, floor}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token = math.max(floor + 1, math.min(math.max(proposed, now - skew), now + skew))
redis.call('SET', KEYS[1], owner, 'PX', ttl)
-- '%.0f': tostring would print a number of 16 digits as 1.795e+15
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ttl + floor_ttl)
return {1, token, holder and 1 or 0}
