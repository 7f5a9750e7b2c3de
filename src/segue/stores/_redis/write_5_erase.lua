-- Hollowing and erasing.

function ops.hollow(op)
  local row = look(op.at, op.id)
  if not is_there(row) then return {'not_found'} end
  for _, seq in ipairs(op.seqs) do
    if seq <= row.base or seq > row.head then return {'not_own', seq, row.base, row.head} end
  end
  local full, seen, marks, across = {}, {}, {}, {}
  for _, seq in ipairs(op.seqs) do
    if not seen[seq] then
      seen[seq] = true
      local record = redis.call('HGET', KEYS[row.at + ENTRIES], text(seq))
      if not record then error({lost = seq}) end
      local content, created = unpack_limit(record, 8, DIGEST + 1)
      local _, refs, codec = unpack_limit(record, 2, content)
      if codec then
        full[#full + 1] = text(seq)
        full[#full + 1] = string.sub(record, 1, content) .. '\144\192\192' -- no refs, no codec, no body
        for _, ref in ipairs(refs) do
          marks[#marks + 1] = ref .. '\0' .. sortable(seq) .. sortable(created)
          across[#across + 1] = ref .. '\0' .. sortable(created) .. row.id .. '\0' .. sortable(seq)
        end
      end
    end
  end
  in_chunks('ZREM', KEYS[row.at + MARKS], marks)
  in_chunks('ZREM', KEYS[REFS], across)
  in_chunks('HSET', KEYS[row.at + ENTRIES], full)
  changed[#changed + 1] = op.id
  return {'done', #full / 2}
end

-- Up to which seq living forks take entries of a segment, but for one of them.
local function shared_upto(at, base, without)
  for _, fork in ipairs(redis.call('ZREVRANGE', KEYS[at + SHARES], 0, 1)) do
    if fork ~= without then return tonumber(redis.call('ZSCORE', KEYS[at + SHARES], fork)) end
  end
  return base
end

-- What must go so that of a segment only the entries up to `keep` stay.
local function ids_after(at, keep)
  local ids, all = {}, redis.call('HGETALL', KEYS[at + IDS])
  for n = 1, #all, 2 do
    if tonumber(all[n + 1]) > keep then ids[#ids + 1] = all[n] end
  end
  return ids
end

local function cut(at, base, last, keep)
  if keep <= base then
    redis.call('UNLINK', KEYS[at + ENTRIES], KEYS[at + IDS], KEYS[at + MARKS])
    return last - base
  end
  local seqs, marks = {}, {}
  for seq = keep + 1, last do seqs[#seqs + 1] = text(seq) end
  for _, mark in ipairs(redis.call('ZRANGE', KEYS[at + MARKS], 0, -1)) do
    if tonumber(string.sub(mark, -32, -17)) > keep then marks[#marks + 1] = mark end
  end
  local ids = ids_after(at, keep)
  in_chunks('HDEL', KEYS[at + ENTRIES], seqs)
  in_chunks('HDEL', KEYS[at + IDS], ids)
  in_chunks('ZREM', KEYS[at + MARKS], marks)
  return last - keep
end

-- Of all that carries refs, nothing is found across the scope any more, also what forks keep.
local function forget_refs(row)
  local across = {}
  for _, mark in ipairs(redis.call('ZRANGE', KEYS[row.at + MARKS], 0, -1)) do
    local ref, seq, created = string.sub(mark, 1, -34), string.sub(mark, -32, -17), string.sub(mark, -16)
    across[#across + 1] = ref .. '\0' .. created .. row.id .. '\0' .. seq
  end
  in_chunks('ZREM', KEYS[REFS], across)
end

local function forget(row)
  for _, list in ipairs({LISTED, UNLISTED, ARCHIVED, DUE, OLD, LEASES}) do redis.call('ZREM', KEYS[list], row.id) end
  in_chunks('ZREM', KEYS[WORDS], words_of(row))
  if row.key then redis.call('HDEL', KEYS[NAMES], row.key) end
  forget_refs(row)
end

-- The session takes no part in what it shared; what an erased owner had kept for it alone goes.
local function leave(row, parts)
  local gone = 0
  for n = 1, #parts - 1 do
    local part = parts[n]
    local owner = look(part.at, part.owner)
    redis.call('ZREM', KEYS[part.at + SHARES], row.id)
    if owner.gone and owner.head then
      local keep = shared_upto(part.at, owner.base, row.id)
      if keep < owner.head then
        gone = gone + cut(part.at, owner.base, owner.head, keep)
        set(owner, {head = keep})
      end
    end
  end
  return gone
end

function ops.erase(op)
  local row = look(op.at, op.id, WIDE)
  if row.gone then return {'done', 0, 0} end
  if not is_there(row) then return {'not_found'} end
  if op.expect and op.expect ~= row.version then return {'version_moved', row.version} end
  local parts = parts_of(row, op.places)
  local keep = shared_upto(row.at, row.base, row.id)
  changed[#changed + 1] = op.id
  forget(row)
  local gone = cut(row.at, row.base, row.head, keep) + leave(row, parts)
  redis.call('DEL', KEYS[row.at])
  redis.call('HSET', KEYS[row.at], 'gone', '1', 'base', text(row.base), 'head', text(keep))
  return {'done', gone, keep - row.base}
end
