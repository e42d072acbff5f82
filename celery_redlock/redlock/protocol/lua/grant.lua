-- PROTOCOL: GRANT
local call, owner, ttl, supersedes = redis.call, ARGV[1], ARGV[2], ARGV[6] or ''
for index = 3, #KEYS do
  local left = call('PTTL', KEYS[index])
  if left ~= -2 then
    return {2, left}
  end
end
-- Not tonumber, here and below: a sum makes a string a number in half the time.
local floor = (call('GET', KEYS[2]) or 0) + 0
local highest_floor = (ARGV[7] or 0) + 0
local is_too_late = highest_floor > 0 and floor > highest_floor
-- Beyond 2^53 one more is the same number again.
local is_out_of_range = floor >= 9007199254740992
local holder, is_set = false, false
if supersedes == '' and not is_too_late and not is_out_of_range then
  -- The lock is nearly always free: one command finds that out and sets it. A node that may not
  -- write still names the holder.
  is_set = redis.pcall('SET', KEYS[1], owner, 'PX', ttl, 'NX')
  is_set = is_set and is_set.ok
end
if not is_set then
  holder = call('GET', KEYS[1])
  if holder == owner then
    return {1, floor, 0}
  end
end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if not is_set then
  if is_too_late or holder and (supersedes == '' or holder ~= supersedes) then
    return {0, holder or '', holder and call('PTTL', KEYS[1]) or 0, floor, now}
  end
  if is_out_of_range then
    return redis.error_reply('ERR the floor is out of range')
  end
  call('SET', KEYS[1], owner, 'PX', ttl)
end
local proposed, skew = ARGV[3] + 0, ARGV[4] + 0
local token, digits = proposed, ARGV[3]
if token < now - skew then
  token = now - skew
elseif token > now + skew then
  token = now + skew
end
if token <= floor then
  token = floor + 1
end
if token ~= proposed then
  -- '%.0f': tostring would print a number of 16 digits as 1.795e+15
  digits = string.format('%.0f', token)
end
local lasts = ttl + ARGV[5]
if token > now then
  -- Longer for a token that is ahead of this clock, by a day at most: without a floor, the next
  -- token is taken from the clock.
  lasts = lasts + math.ceil(math.min((token - now) / 1000, 86400000))
end
call('SET', KEYS[2], digits, 'PX', lasts)
-- Not a table, unless it is needed: making and sending that takes as long as a command.
return holder and {1, token, 1} or digits
