-- PROTOCOL: RELEASE
local owner, token, floor_ttl, keep, done_ttl, superseded =
  ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local holder = redis.call('GET', KEYS[1])
local held = 0
if superseded and superseded ~= '' and holder == superseded then
  redis.call('DEL', KEYS[1])
elseif holder == owner then
  held = 1
  if keep > 0 then
    redis.call('PEXPIRE', KEYS[1], keep)
  else
    redis.call('DEL', KEYS[1])
  end
end
if token > 0 and tonumber(redis.call('GET', KEYS[2]) or '0') <= token then
  redis.call('SET', KEYS[2], string.format('%.0f', token + 1), 'PX', keep + floor_ttl)
end
if KEYS[3] then
  redis.call('SET', KEYS[3], '1', 'PX', done_ttl)
end
return held
