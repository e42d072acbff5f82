-- PROTOCOL: ACQUIRE 3
local owner, token, ttl, floor_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
if redis.call('GET', KEYS[1]) ~= owner then
  return 0
end
if tonumber(redis.call('GET', KEYS[2]) or '0') > token then
  return 0
end
local time = redis.call('TIME')
local ahead = token - tonumber(time[1]) * 1000000 - tonumber(time[2])
local lasts = ttl + floor_ttl + math.ceil(math.min(math.max(0, ahead / 1000), 86400000))
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', lasts)
return 1
