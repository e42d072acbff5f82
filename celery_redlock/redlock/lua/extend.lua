-- PROTOCOL: EXTEND
local owner, token, ttl, floor_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local floor = tonumber(redis.call('GET', KEYS[2]) or '0')
local holder = redis.call('GET', KEYS[1])
if floor > token then
  return 0
end
if holder and holder ~= owner then
  return 3
end
redis.call('SET', KEYS[1], owner, 'PX', ttl)
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ttl + floor_ttl)
if holder then
  return 1
end
return 2
