-- Send requests by wrk, and print its numbers as one line of JSON. Arguments: the kind, and for resolves: token,
-- number of names, names of one namespace, fingerprint as JSON.
--   bare: GET of the path as it is
--   cached: the same resolve again and again
--   uncached: one name after the other, and no resolve twice: the model in it is a counter
local threads = 0

function setup(thread)
   thread:set("number", threads)
   threads = threads + 1
end

function init(args)
   kind = args[1]
   if kind == "bare" then
      fixed = wrk.format("GET")
      return
   end
   headers = {["Authorization"] = "Bearer " .. args[2], ["Content-Type"] = "application/json"}
   names, names_of_one, fingerprint = tonumber(args[3]), tonumber(args[4]), args[5]
   count = (os.time() % 1e6) * 1e6 + number * 5e5
   if kind == "cached" then
      fixed = resolve(0, 0)
   end
end

function resolve(name, model)
   local body = string.format(
      '{"fingerprint":%s,"model":"sha256:%064x","name":"model/%d","namespace":"team-%d","tags":["latest"]}',
      fingerprint, model, name, math.floor(name / names_of_one))
   return wrk.format("POST", nil, headers, body)
end

function request()
   if fixed then
      return fixed
   end
   count = count + 1
   return resolve(count * 7919 % names, count)
end

function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      '{"requests":%d,"seconds":%.6f,"p50_ms":%.3f,"p99_ms":%.3f,"bytes":%d,"errors":%d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      summary.bytes, errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
