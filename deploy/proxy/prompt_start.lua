-- What a prompt begins with, by which HAProxy chooses a replica. The body is only read, and may be cut off after
-- HAProxy's buffer: nothing here parses JSON.
--
-- A quote inside of a JSON string has a backslash before it, so `"prompt"` with plain quotes and a colon is a field's name.

local LENGTH = 256 -- bytes that decide

-- The text from the value of a field on; nil without that field.
local function value_of(body, field)
    local _, last = body:find('"' .. field .. '"%s*:%s*')
    return last and body:sub(last + 1)
end

-- A conversation is known by its first message of the user: all of its turns go to one replica.
local function conversation_start(messages)
    local _, role = messages:find('"role"%s*:%s*"user"')
    if not role then
        return messages:sub(1, LENGTH)
    end
    local content = messages:find('"content"%s*:', role)
    local next_role = messages:find('"role"%s*:', role)
    local from = (content and (not next_role or content < next_role)) and content or role
    -- Up to the end of that message, or to the first brace inside of its text, which is the same in each turn.
    return messages:sub(1, messages:find("}", from, true) or -1)
end

core.register_fetches("prompt_start", function(txn)
    local body = txn.f:req_body() or ""
    local messages = value_of(body, "messages")
    if messages then
        return conversation_start(messages)
    end
    return (value_of(body, "prompt") or body):sub(1, LENGTH)
end)
