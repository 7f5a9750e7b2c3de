-- Operations on the sessions of one scope. The files write_*.lua are one script, in the order of their names.
--
-- KEYS 1 to 9 are the scope's; each session has five keys side by side, from the place (`at`) that an operation names.
-- ARGV: the shift of the clock, where to publish ('' = nowhere), who publishes, then the operations. Behind each come
-- its `raws`, byte strings that it names by number: the records of its entries, the values of a row.
-- An operation reads all it needs before it writes, and writes the row last: an error leaves nothing half done.

local LISTED, UNLISTED, ARCHIVED, DUE, OLD, WORDS, NAMES, REFS, LEASES = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ENTRIES, IDS, MARKS, SHARES = 1, 2, 3, 4 -- from the row's place on

local CHUNK = 1000 -- arguments of one command
local DIGEST = 32 -- bytes, before the rest of a record
local unpack_limit = cmsgpack.unpack_limit
local ops, changed = {}, {}

-- A call that goes on where another stopped is of the same moment: ARGV[1] is then '=' and that time.
local time = redis.call('TIME')
local now = tonumber(string.match(ARGV[1], '^=(%d+)')) or time[1] * 1e6 + time[2] + ARGV[1]

-- As text, numbers would lose their last digits.
local function text(number) return string.format('%.0f', number) end
local function sortable(number) return string.format('%016.0f', number) end

-- What every operation looks at, and what only some do.
local HOT = {
  'gone', 'base', 'head', 'fence', 'version', 'state', 'idle', 'expires', 'active', 'pinned', 'listed', 'usage', 'run',
  'paused', 'lapses', 'holder', 'queue', 'spans',
}
local WIDE = {
  'gone', 'base', 'head', 'fence', 'version', 'state', 'idle', 'expires', 'active', 'pinned', 'listed', 'usage', 'run',
  'paused', 'lapses', 'holder', 'queue', 'spans', 'archived', 'key', 'tags', 'parent', 'parent_seq', 'parent_link',
}
local NUMBERS = {
  base = true, head = true, fence = true, version = true, idle = true, expires = true, active = true,
  archived = true, lapses = true,
}

local function look(at, id, fields)
  fields = fields or HOT
  local values = redis.call('HMGET', KEYS[at], unpack(fields))
  local row = {at = at, id = id}
  for n = 1, #fields do
    local name, value = fields[n], values[n]
    if value then
      if NUMBERS[name] then value = assert(tonumber(value), 'the row holds no number as ' .. name) end
      row[name] = value
    end
  end
  return row
end

local function is_there(row) return row.head ~= nil and not row.gone end

local function set(row, changes)
  local flat = {}
  for name, value in pairs(changes) do
    row[name] = value
    flat[#flat + 1] = name
    flat[#flat + 1] = type(value) == 'number' and text(value) or value
  end
  redis.call('HSET', KEYS[row.at], unpack(flat))
end

local function drop(row, ...)
  for _, name in ipairs({...}) do row[name] = nil end
  redis.call('HDEL', KEYS[row.at], ...)
end

local function in_chunks(command, key, values)
  for first = 1, #values, CHUNK do
    redis.call(command, key, unpack(values, first, math.min(first + CHUNK - 1, #values)))
  end
end

-- The lists of the scope.

local function due(row)
  local ends = row.expires
  if row.idle and (not ends or row.active + row.idle < ends) then ends = row.active + row.idle end
  return ends
end

local function list_of(row)
  if row.state == 'archived' then return ARCHIVED end
  return row.listed and LISTED or UNLISTED
end

-- The lease and its queue.

local function running(row)
  return row.run and not row.paused and row.lapses > now
end

local function holds(row, run, fence) return row.run and row.run == run and row.fence == fence end

local function waiting(row)
  local tickets = {}
  for _, ticket in ipairs(row.queue and cmsgpack.unpack(row.queue) or {}) do
    if ticket[2] > now then tickets[#tickets + 1] = ticket end
  end
  return tickets
end

local function keep_queue(row, tickets)
  if #tickets > 0 then
    set(row, {queue = cmsgpack.pack(tickets)})
  elseif row.queue then
    drop(row, 'queue')
  end
end
