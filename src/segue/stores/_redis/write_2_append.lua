-- Appending: what is known already, and what is new.

-- Of which segments a history is made: those of its ancestors, then its own. A call names their keys; one that does not
-- know them yet is told which they are, and comes again.
local function parts_of(row, places)
  local spans = row.spans and cmsgpack.unpack(row.spans) or {}
  if #spans ~= #places then error({need = row.spans or '\144'}) end
  local parts = {}
  for n, span in ipairs(spans) do
    parts[n] = {owner = span[1], base = span[2], upto = span[3], at = places[n]}
  end
  parts[#parts + 1] = {owner = row.id, base = row.base, upto = row.head, at = row.at}
  return parts
end

local function digest_at(part, seq)
  local record = redis.call('HGET', KEYS[part.at + ENTRIES], text(seq))
  if not record then error({lost = seq}) end
  return string.sub(record, 1, DIGEST)
end

local function known_among(ids, parts)
  local found = {}
  for _, part in ipairs(parts) do
    if part.upto > part.base then
      for first = 1, #ids, CHUNK do
        local last = math.min(first + CHUNK - 1, #ids)
        for n, seq in ipairs(redis.call('HMGET', KEYS[part.at + IDS], unpack(ids, first, last))) do
          local id = ids[first + n - 1]
          seq = tonumber(seq or nil)
          if seq and seq <= part.upto and not found[id] then found[id] = {seq = seq, part = part} end
        end
      end
    end
  end
  return found
end

-- Entries are {id, is it a message, refs, usage}; the record of the nth, from its id on and behind its digest, is raw n.
local function tell_apart(row, op, parts)
  local batch, entries = {new = {}, raws = {}, seqs = {}}, op.entries
  if #entries == 0 then return batch end
  local ids, mine = {}, {}
  for n, entry in ipairs(entries) do ids[n] = entry[1] end
  local known = known_among(ids, parts)
  for n, entry in ipairs(entries) do
    local id, raw = entry[1], ARGV[op.raw + n]
    local digest = string.sub(raw, 1, DIGEST)
    local seq, other = nil, nil
    if known[id] then
      seq, other = known[id].seq, digest_at(known[id].part, known[id].seq)
    elseif mine[id] then
      seq, other = mine[id][1], mine[id][2]
    else
      batch.new[#batch.new + 1] = entry
      batch.raws[#batch.raws + 1] = raw
      batch.has_message = batch.has_message or entry[2]
      seq = row.head + #batch.new
      mine[id] = {seq, digest}
    end
    if other and other ~= digest then return nil, {'id_conflict', id, seq} end
    batch.seqs[n] = seq
  end
  return batch
end

local function index_refs(row, refs, seq, marks, across)
  local seen = {}
  for _, ref in ipairs(refs) do
    if not seen[ref] then
      seen[ref] = true
      marks[#marks + 1] = 0
      marks[#marks + 1] = ref .. '\0' .. sortable(seq) .. sortable(now)
      across[#across + 1] = 0
      across[#across + 1] = ref .. '\0' .. sortable(now) .. row.id .. '\0' .. sortable(seq)
    end
  end
end

local function sum_usage(row, new)
  local usage = nil
  for _, entry in ipairs(new) do
    if entry[4] then
      usage = usage or (row.usage and cmsgpack.unpack(row.usage)) or {0, 0, 0, 0, 0, 0}
      for n = 1, 6 do usage[n] = usage[n] + entry[4][n] end
    end
  end
  return usage and cmsgpack.pack(usage)
end

-- A completed session that goes on is active again.
local function wake(row, changes)
  if row.state == 'completed' then
    changes.state = 'active'
    changes.version = row.version + 1
  end
  return changes
end

local function add(row, batch, run)
  local new = batch.new
  if #new == 0 then return end
  local beginning = '\155' .. cmsgpack.pack(now) .. (run and cmsgpack.pack(run) or '\192')
  local records, ids, marks, across = {}, {}, {}, {}
  for n, entry in ipairs(new) do
    local seq = text(row.head + n)
    local raw = batch.raws[n]
    records[2 * n - 1] = seq
    records[2 * n] = string.sub(raw, 1, DIGEST) .. beginning .. string.sub(raw, DIGEST + 1)
    ids[2 * n - 1], ids[2 * n] = entry[1], seq
    if entry[3] then index_refs(row, entry[3], row.head + n, marks, across) end
  end
  in_chunks('HSET', KEYS[row.at + ENTRIES], records)
  in_chunks('HSET', KEYS[row.at + IDS], ids)
  in_chunks('ZADD', KEYS[row.at + MARKS], marks)
  in_chunks('ZADD', KEYS[REFS], across)
  redis.call('ZADD', KEYS[list_of(row)], now, row.id)
  local changes = {head = row.head + #new, active = now, usage = sum_usage(row, new)}
  if batch.has_message then wake(row, changes) end
  set(row, changes)
  if row.idle and not row.pinned then redis.call('ZADD', KEYS[DUE], due(row), row.id) end
end

local function may_append(row, op, batch)
  if row.state == 'archived' then return {'archived'} end
  if op.fence then
    if not holds(row, op.run, op.fence) or row.paused then return {'lease_lost', row.fence} end
  elseif batch.has_message and running(row) then
    return {'busy', row.run, #waiting(row)}
  end
  if op.expect and op.expect ~= row.head then return {'head_moved', row.head} end
end

function ops.append(op)
  local row = look(op.at, op.id)
  if not is_there(row) then return {'not_found'} end
  local batch, conflict = tell_apart(row, op, parts_of(row, op.places))
  if not batch then return conflict end
  if #batch.new > 0 then
    local refusal = may_append(row, op, batch)
    if refusal then return refusal end
    changed[#changed + 1] = op.id
    add(row, batch, op.run)
  end
  return {'done', row.head, #batch.new, unpack(batch.seqs)}
end
