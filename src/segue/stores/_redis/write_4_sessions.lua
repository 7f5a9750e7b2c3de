-- Making, forking and changing sessions.

-- What is answered, in the order in which it is read there.
local ROW = {
  'key', 'format', 'title', 'state', 'head', 'base', 'fence', 'version', 'tags', 'metadata', 'pinned', 'listed',
  'config', 'idle', 'expires', 'created', 'active', 'archived', 'usage', 'parent', 'parent_seq', 'parent_link',
  'run', 'paused', 'lapses', 'holder', 'queue', 'spans',
}

local function whole(row) return {'done', redis.call('HMGET', KEYS[row.at], unpack(ROW))} end

local function values_of(op, fields)
  local values = {}
  for name, n in pairs(fields) do values[name] = ARGV[op.raw + n] end
  return values
end

local function file(row)
  local mine = list_of(row)
  for _, list in ipairs({LISTED, UNLISTED, ARCHIVED}) do
    if list ~= mine then redis.call('ZREM', KEYS[list], row.id) end
  end
  redis.call('ZADD', KEYS[mine], row.active, row.id)
  local ends = due(row)
  if ends and row.state ~= 'archived' and not row.pinned then
    redis.call('ZADD', KEYS[DUE], ends, row.id)
  else
    redis.call('ZREM', KEYS[DUE], row.id)
  end
  if row.archived and not row.pinned then
    redis.call('ZADD', KEYS[OLD], row.archived, row.id)
  else
    redis.call('ZREM', KEYS[OLD], row.id)
  end
end

-- Tags, parent and key as members of one list that is sorted by bytes.
local function words_of(row)
  local words = {}
  for tag in string.gmatch(row.tags or '', '%Z+') do
    words[#words + 1] = 't' .. struct.pack('>H', #tag) .. tag .. row.id
  end
  if row.parent then words[#words + 1] = 'p' .. struct.pack('>H', #row.parent) .. row.parent .. row.id end
  if row.key then words[#words + 1] = 'k' .. row.key .. '\0' .. row.id end
  return words
end

local function index_words(row)
  local scored = {}
  for _, word in ipairs(words_of(row)) do
    scored[#scored + 1] = 0
    scored[#scored + 1] = word
  end
  in_chunks('ZADD', KEYS[WORDS], scored)
end

local function is_same(row, op)
  return is_there(row) and row.key == op.key and row.parent == op.parent
    and tonumber(row.parent_seq) == op.parent_seq and row.parent_link == op.parent_link
end

-- The parts of a history up to a seq.
local function clip(parts, upto)
  local clipped, spans = {}, {}
  for _, part in ipairs(parts) do
    if part.base < upto then
      local ends = math.min(part.upto, upto)
      clipped[#clipped + 1] = {owner = part.owner, base = part.base, upto = ends, at = part.at}
      spans[#spans + 1] = {part.owner, part.base, ends}
    end
  end
  return clipped, #spans > 0 and cmsgpack.pack(spans) or nil
end

local function put(row, op, batch, shared)
  for _, part in ipairs(shared) do redis.call('ZADD', KEYS[part.at + SHARES], part.upto, row.id) end
  set(row, values_of(op, op.fields))
  row.idle, row.expires = tonumber(row.idle), tonumber(row.expires)
  if op.key then redis.call('HSET', KEYS[NAMES], op.key, row.id) end
  index_words(row)
  file(row)
  local spans = {base = row.base, head = row.head, fence = 0, version = 1, state = 'active', created = now, active = now}
  spans.spans = row.spans
  set(row, spans)
  add(row, batch, nil)
end

function ops.create(op)
  local row = look(op.at, op.id, WIDE)
  if is_same(row, op) then return whole(row) end
  if row.head or row.gone then return {'id_taken', is_there(row) and op.id or ''} end
  row.base, row.active, row.state = 0, now, 'active'
  local shared = {}
  if op.source then
    local source = look(op.source, op.source_id)
    if not is_there(source) then return {'no_source'} end
    if op.upto < 0 or op.upto > source.head then return {'no_such_seq', source.head} end
    shared, row.spans = clip(parts_of(source, op.places), op.upto)
    row.base = op.upto
  end
  row.head = row.base
  local owner = op.key and redis.call('HGET', KEYS[NAMES], op.key)
  if owner then return {'key_taken', owner} end
  local batch, conflict = tell_apart(row, op, shared)
  if not batch then return conflict end
  changed[#changed + 1] = op.id
  put(row, op, batch, shared)
  return whole(row)
end

local function refusal_of(row, op)
  if op.expect and op.expect ~= row.version then return {'version_moved', row.version} end
  if op.if_due then
    local ends = due(row)
    if row.pinned or not ends or ends > op.if_due then return {'version_moved', row.version} end
  end
  if op.values.state == 'archived' and row.state ~= 'archived' and running(row) then return {'busy', row.run} end
  if op.values.key and op.values.key ~= row.key then
    local owner = redis.call('HGET', KEYS[NAMES], op.values.key)
    if owner then return {'key_taken', owner} end
  end
end

function ops.update(op)
  local row = look(op.at, op.id, WIDE)
  if not is_there(row) then return {'not_found'} end
  op.values = values_of(op, op.fields)
  local refusal = refusal_of(row, op)
  if refusal then return refusal end
  changed[#changed + 1] = op.id
  local changes, gone = op.values, op.unset
  if changes.state and changes.state ~= row.state then
    if changes.state == 'archived' then changes.archived = now else gone[#gone + 1] = 'archived' end
  end
  changes.version = row.version + 1
  local words, key = words_of(row), row.key
  in_chunks('ZREM', KEYS[WORDS], words)
  set(row, changes)
  if #gone > 0 then drop(row, unpack(gone)) end
  row.idle, row.expires = tonumber(row.idle), tonumber(row.expires)
  if key and key ~= row.key then redis.call('HDEL', KEYS[NAMES], key) end
  if row.key and key ~= row.key then redis.call('HSET', KEYS[NAMES], row.key, row.id) end
  index_words(row)
  file(row)
  return whole(row)
end
