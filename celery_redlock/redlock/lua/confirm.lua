-- PROTOCOL: ACQUIRE 3
local owner, token, ttl, floor_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if redis.call('GET', KEYS[1]) ~= owner then
  return 0
end
if tonumber(redis.call('GET', KEYS[2]) or '0') > token then
  return 0
end
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ttl + floor_ttl)
return 1
