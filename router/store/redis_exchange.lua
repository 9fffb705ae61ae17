-- One exchange of a replica with the shared state, as one atomic step. ARGV: the prefix of all keys, and the replica's
-- message as JSON (router/store/redis_state.py writes it and reads the answer). Money and levels are returned as strings,
-- because cjson writes only 14 digits of a number.
--
-- Keys, after the prefix:
--   replicas         sorted set: run -> time of its last exchange
--   run:RUN          hash: number of its last exchange, number of its last batch of adjustments, view (its report, as JSON)
--   budget:BUDGET    hash: spent and held (sums), run:RUN -> spending of that run (only grows)
--   held:RUN         hash: budget -> reservations of that run
--   holders          sorted set: run -> time of its last exchange, kept for longer: a replica that is only disconnected
--                    keeps paying from its reservations
--   bucket:NAME      string: level and its time; expires when full
--   counter, changes a counter, and a sorted set: changed item -> the counter at its last change. A replica reads the
--                    changes since its last exchange. b:RUN:BUDGET money, v:RUN a view, t:GROUP a turn, d:NAME a document
--   turns (round-robin positions, TURNS_KEPT at most), observations (a stream), versions, documents
local prefix, message = ARGV[1], cjson.decode(ARGV[2])
local run, call = message.run, redis.call
local time = call('TIME')
local now = time[1] + time[2] / 1000000

local LIVE_S, DEAD_S, HELD_S, DAY_BUDGET_S = 2, 10, 60, 3 * 86400
local PAGE, OBSERVATIONS, OBSERVATIONS_KEPT, TURNS_KEPT = 500, 50, 1000, 1024
local SLACK, SLACK_USD = 1e-9, 1e-8

local function key(kind, name) return prefix .. kind .. (name or '') end
local function exact(number) return string.format('%.17g', number) end
local function number(reply) return tonumber(reply or 0) end
local function changed(what) call('ZADD', key('changes'), call('INCR', key('counter')), what) end

-- --- money ---
-- Balances and levels that change are kept here until `write`, so that many claims on one of them write it once.
local balances, holders, buckets = {}, {}, {}

local function balance_of(budget)
  local balance = balances[budget]
  if not balance then
    local sums = call('HMGET', key('budget:', budget), 'spent', 'held')
    balance = {spent = number(sums[1]), held = number(sums[2]), runs = {}, changed = {}}
    balances[budget] = balance
  end
  return balance
end

local function spent(budget, who, usd)
  local balance = balance_of(budget)
  local before = balance.runs[who] or number(call('HGET', key('budget:', budget), 'run:' .. who))
  if usd > before then
    balance.runs[who], balance.spent = usd, math.max(0, balance.spent + (usd - before))
    balance.changed[who] = true
  end
end

local function reserved_by(who, budget)
  local reserved = holders[who] or {}
  holders[who] = reserved
  reserved[budget] = reserved[budget] or number(call('HGET', key('held:', who), budget))
  return reserved[budget]
end

local function reserve(who, budget, usd)
  local balance, before = balance_of(budget), reserved_by(who, budget)
  if usd ~= before then
    holders[who][budget], balance.held = usd, math.max(0, balance.held + (usd - before))
    if balance.held < 1e-12 then balance.held = 0 end  -- a rounding error
    balance.changed[who] = true
  end
end

local function release(who)
  for _, budget in ipairs(call('HKEYS', key('held:', who))) do
    reserve(who, budget, 0)
  end
end

-- Times that lie ahead are from before the clock was set back: else a replica that is gone would stay until then.
local function not_ahead(seen)
  for _, who in ipairs(call('ZRANGEBYSCORE', key(seen), '(' .. exact(now), '+inf')) do
    call('ZADD', key(seen), exact(now), who)
  end
end

-- The number of its last batch stays as long as its reservations: it may come back, and send that batch again.
local function forget(who)
  call('HDEL', key('run:', who), 'number', 'view')
  call('ZREM', key('replicas'), who)
  call('ZREM', key('changes'), 'v:' .. who)
end

-- --- buckets ---
local function level_of(name, capacity, refill_per_s)
  if buckets[name] then return math.min(capacity, buckets[name].level) end
  local text = call('GET', key('bucket:', name))
  if not text then return capacity end
  local level, at = string.match(text, '(%S+) (%S+)')
  if tonumber(at) > now then  -- the clock was set back: continue from here
    call('SET', key('bucket:', name), level .. ' ' .. exact(now), 'KEEPTTL')
    return tonumber(level)
  end
  return math.min(capacity, level + (now - at) * refill_per_s)
end

local function set_level(name, capacity, refill_per_s, level)
  buckets[name] = {level = level, capacity = capacity, refill_per_s = refill_per_s}
end

local function grant(claim)
  local takes, budgets, reserve_usd, least_usd = claim[1], claim[2], claim[3], claim[4]
  local levels, given = {}, true
  for i, take in ipairs(takes) do
    local level = level_of(take[1], take[2], take[3])
    levels[i] = level
    given = given and level + SLACK >= take[4]
  end
  local short, left = 0, nil
  for i, budget in ipairs(budgets) do
    local balance = balance_of(budget[1])
    local left_here = budget[2] - balance.spent - balance.held
    if not left or left_here < left then
      left = left_here
      if left + SLACK_USD < least_usd or left <= 0 then short = i end
    end
  end
  given = given and short == 0
  local reserved = 0
  if given then
    for i, take in ipairs(takes) do
      set_level(take[1], take[2], take[3], levels[i] - take[4])
    end
    if left then
      reserved = math.max(0, math.min(reserve_usd, left))
      for _, budget in ipairs(reserved > 0 and budgets or {}) do
        reserve(run, budget[1], reserved_by(run, budget[1]) + reserved)
      end
    end
  end
  for i, level in ipairs(levels) do levels[i] = exact(level) end
  return {given, levels, short, exact(reserved), left and exact(left) or ''}
end

local function write()
  for budget, balance in pairs(balances) do
    if next(balance.changed) then
      local where = key('budget:', budget)
      call('HSET', where, 'spent', exact(balance.spent), 'held', exact(balance.held))
      for who, usd in pairs(balance.runs) do call('HSET', where, 'run:' .. who, exact(usd)) end
      if string.sub(budget, 1, 6) ~= 'total:' and call('TTL', where) < 0 then
        call('EXPIRE', where, DAY_BUDGET_S)
      end
      for who in pairs(balance.changed) do
        local usd = holders[who] and holders[who][budget]
        if usd and usd > 0 then
          call('HSET', key('held:', who), budget, exact(usd))
        elseif usd then
          call('HDEL', key('held:', who), budget)
        end
        changed('b:' .. who .. ':' .. budget)
      end
    end
  end
  for name, bucket in pairs(buckets) do
    if bucket.level >= bucket.capacity then
      call('DEL', key('bucket:', name))
    else
      local full_ms = math.ceil((bucket.capacity - bucket.level) / bucket.refill_per_s * 1000) + 1
      local text = exact(bucket.level) .. ' ' .. exact(now)
      call('SET', key('bucket:', name), text, 'PX', string.format('%.0f', full_ms))
    end
  end
  balances, holders, buckets = {}, {}, {}
end

-- --- changes by other replicas ---
-- Each entry is its kind, its name and its current content; nil if it is this replica's own, false if it no longer exists.
local READ = {
  b = function(name)
    local who, budget = string.match(name, '^([^:]*):(.*)$')
    if who == run then return nil end
    local sums = call('HMGET', key('budget:', budget), 'run:' .. who, 'held')
    return (sums[1] or sums[2]) and {'b', budget, who, sums[1] or '0', sums[2] or '0'}
  end,
  v = function(who)
    if who == run then return nil end
    local view = call('HGET', key('run:', who), 'view')
    return view and {'v', who, view}
  end,
  t = function(what)
    local turn = call('HGET', key('turns'), what)
    return turn and {'t', what, turn}
  end,
  d = function(name)
    local content = call('HGET', key('documents'), name)
    return content and {'d', name, number(call('HGET', key('versions'), name)), content}
  end,
}

local function read_changes()
  local rows = call('ZRANGEBYSCORE', key('changes'), string.format('(%.0f', message.since), '+inf',
    'WITHSCORES', 'LIMIT', 0, PAGE)
  local feed = {}
  for i = 1, #rows, 2 do
    local entry = READ[string.sub(rows[i], 1, 1)](string.sub(rows[i], 3))
    if entry then
      feed[#feed + 1] = entry
    elseif entry == false then
      call('ZREM', key('changes'), rows[i])
    end
  end
  local more = #rows == 2 * PAGE
  return feed, more and tonumber(rows[#rows]) or number(call('GET', key('counter'))), more
end

-- Budgets of days expire by themselves; their entries in `changes` are removed one by one.
local function tidy()
  local what = call('ZRANDMEMBER', key('changes'))
  local budget = what and string.match(what, '^b:[^:]*:(.*)$')
  if budget and call('EXISTS', key('budget:', budget)) == 0 then
    call('ZREM', key('changes'), what)
  end
end

local function read_observations()
  if message.last_message == '' then  -- a new replica gets only later observations
    local last = call('XREVRANGE', key('observations'), '+', '-', 'COUNT', 1)
    return {}, last[1] and last[1][1] or '0-0', false
  end
  local rows = call('XRANGE', key('observations'), '(' .. message.last_message, '+', 'COUNT', OBSERVATIONS)
  local observations, last_message = {}, message.last_message
  for _, row in ipairs(rows) do
    last_message = row[1]
    if row[2][2] ~= run then observations[#observations + 1] = row[2][4] end
  end
  return observations, last_message, #rows == OBSERVATIONS
end

-- --- the exchange ---
local last = call('HMGET', key('run:', run), 'number', 'adjustments')
if not last[1] and not message.hello then
  return '{"unknown":true}'  -- Redis has lost the replica's data: the replica must send everything again
end
if number(last[1]) >= message.number then
  return '{"late":true}'  -- from an old connection, read after a later exchange
end
call('HSET', key('run:', run), 'number', message.number)
call('ZADD', key('replicas'), exact(now), run)
call('ZADD', key('holders'), exact(now), run)
if message.hello then release(run) end
not_ahead('replicas')
not_ahead('holders')
for _, who in ipairs(call('ZRANGEBYSCORE', key('replicas'), '-inf', exact(now - DEAD_S))) do forget(who) end
for _, who in ipairs(call('ZRANGEBYSCORE', key('holders'), '-inf', exact(now - HELD_S))) do
  release(who)
  call('DEL', key('run:', who))
  call('ZREM', key('holders'), who)
end

for _, row in ipairs(message.spent) do spent(row[1], row[2], row[3]) end
for _, row in ipairs(message.reserved) do reserve(run, row[1], row[2]) end
if message.adjustments_number > number(last[2]) then
  for _, row in ipairs(message.adjustments) do
    set_level(row[1], row[2], row[3], level_of(row[1], row[2], row[3]) + row[4])
  end
  call('HSET', key('run:', run), 'adjustments', message.adjustments_number)
end
if message.view ~= cjson.null then
  call('HSET', key('run:', run), 'view', message.view)
  changed('v:' .. run)
end
for what, turn in pairs(message.turns) do
  if call('HSET', key('turns'), what, turn) == 1 and call('HLEN', key('turns')) > TURNS_KEPT then
    local dropped = call('HRANDFIELD', key('turns'))  -- clients may use any set of models
    call('HDEL', key('turns'), dropped)
    call('ZREM', key('changes'), 't:' .. dropped)
  end
  changed('t:' .. what)
end
for _, row in ipairs(message.documents) do
  if row[2] > number(call('HGET', key('versions'), row[1])) then
    call('HSET', key('versions'), row[1], row[2])
    call('HSET', key('documents'), row[1], row[3])
    changed('d:' .. row[1])
  end
end
for _, observation in ipairs(message.observations) do
  call('XADD', key('observations'), 'MAXLEN', '~', OBSERVATIONS_KEPT, '*', 'run', run, 'observation', observation)
end

local answer = {grants = {}}
for i, claim in ipairs(message.claims) do answer.grants[i] = grant(claim) end
write()
tidy()
if message.bye then
  release(run)
  write()
  forget(run)
  call('DEL', key('run:', run))
  call('ZREM', key('holders'), run)
end
local more_changes, more_observations
answer.changes, answer.since, more_changes = read_changes()
answer.observations, answer.last_message, more_observations = read_observations()
answer.more = more_changes or more_observations
answer.live = call('ZRANGEBYSCORE', key('replicas'), exact(now - LIVE_S), '+inf')
return cjson.encode(answer)
