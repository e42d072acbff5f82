-- PROTOCOL: RELEASE
-- Not tonumber: a sum makes a string a number in half the time.
local call, owner, token, keep = redis.call, ARGV[1], ARGV[2] + 0, (ARGV[4] or 0) + 0
local holder = call('GET', KEYS[1])
local is_held, is_raised = holder == owner, token == 0
if is_held and keep > 0 then
  call('PEXPIRE', KEYS[1], keep)
elseif is_held then
  call('DEL', KEYS[1])
  -- The floor is nearly always the token, and outlasts the lock by enough: one command raises it
  -- and keeps its expiry. Any other floor is put back first.
  is_raised = is_raised or call('INCR', KEYS[2]) == token + 1 or call('DECR', KEYS[2]) > token
elseif holder and holder == ARGV[6] and holder ~= '' then
  call('DEL', KEYS[1])
end
if not is_raised and (call('GET', KEYS[2]) or 0) + 0 <= token then
  local time = call('TIME')
  local ahead = token - time[1] * 1000000 - time[2]
  local lasts = keep + ARGV[3] + math.ceil(math.min(math.max(0, ahead / 1000), 86400000))
  call('SET', KEYS[2], string.format('%.0f', token + 1), 'PX', lasts)
end
-- Made again later, a release must not cut short a mark that was made to last meanwhile.
if KEYS[3] and call('PTTL', KEYS[3]) < tonumber(ARGV[5]) then
  call('SET', KEYS[3], '1', 'PX', ARGV[5])
end
if not is_held or token == 0 then
  return is_held and 1 or 0
end
-- pcall: without the right to do so, a user's release is complete nevertheless.
local listeners = redis.pcall('PUBSUB', 'NUMSUB', KEYS[1])[2]
if not listeners or listeners == 0 then
  return 1
end
redis.pcall('PUBLISH', KEYS[1], ARGV[2] .. ' ' .. listeners)
return {'released', listeners}
