-- Readings of one scope. ARGV: which, the shift of the clock, then what that one takes.

local CHUNK = 1000
local PIECE = 25 -- records that are looked at together
local BYTES_MAX = 4 * 1024 * 1024 -- of what is looked at in one call, and one piece more: nobody else is served meanwhile
local readings = {}
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2] + ARGV[2]

local function text(number) return string.format('%.0f', number) end

local ROW = {
  'key', 'format', 'title', 'state', 'head', 'base', 'fence', 'version', 'tags', 'metadata', 'pinned', 'listed',
  'config', 'idle', 'expires', 'created', 'active', 'archived', 'usage', 'parent', 'parent_seq', 'parent_link',
  'run', 'paused', 'lapses', 'holder', 'queue', 'spans',
}

-- KEYS: rows. The time, then each row, or nothing for a session that is not there.
function readings.rows()
  local answers = {text(now)}
  for n, key in ipairs(KEYS) do
    local gone = redis.call('HEXISTS', key, 'gone') == 1
    local row = not gone and redis.call('HMGET', key, unpack(ROW))
    answers[n + 1] = row and row[5] and row or false
  end
  return answers
end

-- KEYS: the row, then two keys (entries, marks) of each ancestor and of the session itself, oldest first.
-- Nothing when there is no such session; else its head and its parts as {key of entries, after, upto}.
local function history()
  local row = redis.call('HMGET', KEYS[1], 'gone', 'base', 'head', 'spans')
  if row[1] or not row[3] then return nil end
  local spans = row[4] and cmsgpack.unpack(row[4]) or {}
  if #KEYS ~= 2 * #spans + 3 then return nil, {'need', row[4] or '\144'} end
  local parts = {}
  for n, span in ipairs(spans) do parts[n] = {key = 2 * n, base = span[2], upto = span[3]} end
  parts[#parts + 1] = {key = #KEYS - 1, base = tonumber(row[2]), upto = tonumber(row[3])}
  return parts, nil, tonumber(row[3])
end

local function records_of(parts, seqs, records)
  local n = 1
  while n <= #seqs do
    local part
    for _, each in ipairs(parts) do
      if each.base < seqs[n] and seqs[n] <= each.upto then part = each end
    end
    local fields = {}
    while n <= #seqs and part.base < seqs[n] and seqs[n] <= part.upto and #fields < CHUNK do
      fields[#fields + 1] = text(seqs[n])
      n = n + 1
    end
    for _, record in ipairs(redis.call('HMGET', KEYS[part.key], unpack(fields))) do records[#records + 1] = record end
  end
  return records
end

-- A record: 32 bytes of digest, then when, of which run, which id, which kind, and more.
local function kind_of(record) return (select(5, cmsgpack.unpack_limit(record, 4, 33))) end

-- ARGV: after, upto, reverse, limit, most records to look at, kinds ('' = all).
-- All kinds: 'log', the last seq that was asked for, and the records. Else: 'kinds', the seq to go on after (or before;
-- '' = that was all), then seq and record in turns.
function readings.log()
  local parts, need, head = history()
  if not parts then return need or {'not_found'} end
  local after, upto, limit, most = tonumber(ARGV[3]), math.min(tonumber(ARGV[4]), head), tonumber(ARGV[6]), tonumber(ARGV[7])
  local is_reverse, kinds = ARGV[5] == '1', nil
  if ARGV[8] ~= '' then
    kinds = {}
    for _, kind in ipairs(cmsgpack.unpack(ARGV[8])) do kinds[kind] = true end
  end
  local seqs, count = {}, math.min(upto - after, kinds and most or limit)
  for n = 1, count do seqs[n] = is_reverse and upto + 1 - n or after + n end
  if not kinds then return {'log', text(upto), unpack(records_of(parts, seqs, {}))} end
  local answers, found, bytes, last = {'kinds', ''}, 0, 0, nil
  for first = 1, #seqs, PIECE do
    local piece = {unpack(seqs, first, math.min(first + PIECE - 1, #seqs))}
    for n, record in ipairs(records_of(parts, piece, {})) do
      last, bytes = piece[n], bytes + (record and #record or 0)
      if not record or kinds[kind_of(record)] then
        answers[#answers + 1] = text(last)
        answers[#answers + 1] = record
        found = found + 1
        if found == limit then return answers end
      end
    end
    if bytes > BYTES_MAX then break end
  end
  if last and last ~= (is_reverse and after + 1 or upto) then answers[2] = text(last) end
  return answers
end

-- ARGV: the ref, after, upto, reverse, limit, since. 'refs', whether there may be more ('1'), then seq, which part (from 0)
-- and record in turns.
function readings.refs()
  local parts, need = history()
  if not parts then return need or {'not_found'} end
  local ref, after, upto, limit, since = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[7]), tonumber(ARGV[8])
  local is_reverse = ARGV[6] == '1'
  local first, last, step = 1, #parts, 1
  if is_reverse then first, last, step = #parts, 1, -1 end
  local answers, found, bytes = {'refs', ''}, 0, 0
  for n = first, last, step do
    local part = parts[n]
    local low = '[' .. ref .. '\0' .. string.format('%016.0f', math.max(after, part.base) + 1)
    local high = '(' .. ref .. '\0' .. string.format('%016.0f', math.min(upto, part.upto) + 1)
    local from, to, command = low, high, 'ZRANGEBYLEX'
    if is_reverse then from, to, command = high, low, 'ZREVRANGEBYLEX' end
    local most = since > 0 and -1 or limit - found
    local marks = redis.call(command, KEYS[part.key + 1], from, to, 'LIMIT', 0, most)
    for _, mark in ipairs(marks) do
      if found == limit or bytes > BYTES_MAX then
        answers[2] = '1'
        return answers
      end
      if tonumber(string.sub(mark, -16)) >= since then
        local seq = text(tonumber(string.sub(mark, -32, -17)))
        found = found + 1
        answers[#answers + 1] = seq
        answers[#answers + 1] = n - 1
        local record = redis.call('HGET', KEYS[part.key], seq)
        bytes = bytes + (record and #record or 0)
        answers[#answers + 1] = record
      end
    end
  end
  return answers
end

-- Bytes are compared one by one: `<` would follow the server's locale.
local function is_less(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- The rank of the first member behind a place (score, id), counted from the end that the list begins with.
local function rank_behind(key, is_reverse, score, id)
  local before, equal
  if is_reverse then
    before = redis.call('ZCOUNT', key, '(' .. score, '+inf')
  else
    before = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  end
  equal = redis.call('ZCOUNT', key, score, score)
  local range = is_reverse and 'ZREVRANGE' or 'ZRANGE'
  local low, high = before, before + equal
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = redis.call(range, key, middle, middle)[1]
    local is_behind
    if is_reverse then is_behind = is_less(member, id) else is_behind = is_less(id, member) end
    if is_behind then high = middle else low = middle + 1 end
  end
  return low
end

-- KEYS: sorted lists. ARGV: reverse, the place's score and id ('' = from the start), how many.
-- For each list: members and scores in turns.
function readings.list()
  local is_reverse, score, id, count = ARGV[3] == '1', ARGV[4], ARGV[5], tonumber(ARGV[6])
  local answers = {}
  for n, key in ipairs(KEYS) do
    local first = score == '' and 0 or rank_behind(key, is_reverse, score, id)
    answers[n] = redis.call(is_reverse and 'ZREVRANGE' or 'ZRANGE', key, first, first + count - 1, 'WITHSCORES')
  end
  return answers
end

return readings[ARGV[1]]()
