-- Changes a shared document if it still has the version on which the change is based. ARGV: the prefix of all keys, the
-- document's name, that version, the new content. Returns whether it changed, and the current version and content.
local prefix, name, from, content = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local version = tonumber(redis.call('HGET', prefix .. 'versions', name) or 0)
if version ~= from then
  return {0, version, redis.call('HGET', prefix .. 'documents', name) or '{}'}
end
redis.call('HSET', prefix .. 'versions', name, version + 1)
redis.call('HSET', prefix .. 'documents', name, content)
redis.call('ZADD', prefix .. 'changes', redis.call('INCR', prefix .. 'counter'), 'd:' .. name)
return {1, version + 1, content}
