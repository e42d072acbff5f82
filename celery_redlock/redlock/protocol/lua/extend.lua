-- PROTOCOL: EXTEND
local owner, token, ttl, floor_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local floor = tonumber(redis.call('GET', KEYS[2]) or '0')
local holder = redis.call('GET', KEYS[1])
if floor > token then
  return 0
end
if holder == owner then
  -- Not SET: a full server refuses that.
  redis.call('PEXPIRE', KEYS[1], ttl)
  if floor == token then
    -- Never sooner: the end was chosen for a token ahead of this clock.
    if redis.call('PTTL', KEYS[2]) < ttl + floor_ttl then
      redis.call('PEXPIRE', KEYS[2], ttl + floor_ttl)
    end
    return 1
  end
elseif holder then
  return 3
else
  redis.call('SET', KEYS[1], owner, 'PX', ttl)
end
local time = redis.call('TIME')
local ahead = token - tonumber(time[1]) * 1000000 - tonumber(time[2])
local lasts = ttl + floor_ttl + math.ceil(math.min(math.max(0, ahead / 1000), 86400000))
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', lasts)
return holder and 1 or 2
