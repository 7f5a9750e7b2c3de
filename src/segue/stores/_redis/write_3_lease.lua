-- The lease and its queue.

local function grant(row, op, batch, fence)
  changed[#changed + 1] = op.id
  local tickets = {}
  for _, ticket in ipairs(row.queue and cmsgpack.unpack(row.queue) or {}) do
    if ticket[1] ~= op.run then tickets[#tickets + 1] = ticket end
  end
  add(row, batch, op.run)
  keep_queue(row, tickets)
  if row.paused then drop(row, 'paused') end
  redis.call('ZADD', KEYS[LEASES], now + op.ttl, row.id)
  set(row, wake(row, {run = op.run, fence = fence, lapses = now + op.ttl, holder = op.holder}))
  return {'done', fence, row.lapses}
end

local function place_in(tickets, run)
  for n, ticket in ipairs(tickets) do
    if ticket[1] == run then return n - 1 end
  end
  return #tickets
end

local function stand_in_line(row, op, tickets, before)
  local mine = {op.run, now + op.ticket}
  if tickets[before + 1] then tickets[before + 1] = mine else tickets[#tickets + 1] = mine end
  keep_queue(row, tickets)
end

function ops.take(op)
  local row = look(op.at, op.id)
  if not is_there(row) then return {'not_found'} end
  if row.state == 'archived' then return {'archived'} end
  local batch, conflict = tell_apart(row, op, parts_of(row, op.places))
  if not batch then return conflict end
  if row.run == op.run and not row.paused then return grant(row, op, batch, row.fence) end
  local holder = running(row) and row.run
  if holder and op.dead and row.holder == op.dead then holder = nil end
  local tickets = waiting(row)
  local before = place_in(tickets, op.run)
  local is_free = not holder and before == 0
  if op.policy == 'interrupt' or op.policy == 'rollback' then is_free = not holder or holder == op.over end
  if is_free then return grant(row, op, batch, row.fence + 1) end
  if op.policy == 'enqueue' then
    changed[#changed + 1] = op.id
    stand_in_line(row, op, tickets, before)
    return {'queued', holder or '', before}
  end
  return {'busy', holder or '', before}
end

function ops.renew(op)
  local row = look(op.at, op.id)
  if not is_there(row) then return {'not_found'} end
  if not holds(row, op.run, op.fence) or row.paused then return {'lease_lost', row.fence} end
  redis.call('ZADD', KEYS[LEASES], now + op.ttl, row.id)
  set(row, {lapses = now + op.ttl})
  return {'done', row.lapses, row.holder or ''}
end

function ops.release(op)
  local row = look(op.at, op.id)
  if not is_there(row) then return {'not_found'} end
  local is_mine = op.fence and holds(row, op.run, op.fence)
  if op.pause and op.fence then
    if not is_mine then return {'lease_lost', row.fence} end
    redis.call('ZADD', KEYS[LEASES], now + op.pause, row.id)
    set(row, {paused = '1', lapses = now + op.pause})
  elseif is_mine then
    redis.call('ZREM', KEYS[LEASES], row.id)
    drop(row, 'run', 'paused', 'lapses', 'holder')
  elseif not op.fence then
    local tickets = {}
    for _, ticket in ipairs(waiting(row)) do
      if ticket[1] ~= op.run then tickets[#tickets + 1] = ticket end
    end
    keep_queue(row, tickets)
  end
  changed[#changed + 1] = op.id
  return {'done'}
end
