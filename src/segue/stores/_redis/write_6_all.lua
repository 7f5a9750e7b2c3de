-- One operation after the other. The answer: the time, then an answer for each operation, up to one that needs more keys
-- (`need`) or met damage (`broken`); those behind it were not begun.

local answers, place = {text(now)}, 4
while place <= #ARGV do
  local op = cmsgpack.unpack(ARGV[place])
  op.raw, place = place, place + 1 + op.raws
  local is_done, answer = pcall(ops[op.op], op)
  if not is_done then
    if type(answer) == 'table' and answer.need then
      answer = {'need', answer.need}
    elseif type(answer) == 'table' and answer.lost then
      answer = {'broken', 'entry ' .. text(answer.lost) .. ' is missing', text(answer.lost)}
    else
      local said = type(answer) == 'table' and answer.err or tostring(answer)
      -- The server refuses its first write (full, read-only, a disk in trouble): then nothing was written at all.
      if string.find(said, '^%-?[A-Z]+ ') and not string.find(said, '^%-?WRONGTYPE') and not string.find(said, '^%-?ERR') then
        return redis.error_reply(said)
      end
      answer = {'broken', said}
    end
  end
  answers[#answers + 1] = answer
  if answer[1] == 'need' or answer[1] == 'broken' then break end
end
if ARGV[2] ~= '' and #changed > 0 then
  redis.pcall('PUBLISH', ARGV[2], ARGV[3] .. '\0' .. table.concat(changed, '\0'))
end
return answers
