#include "lockstep/rpc/registry.h"

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::inline v0::rpc {

uint64_t internal::hash_of(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

const internal::Function* Registry::find(std::string_view name) const {
  const auto found = functions_.find(name);
  return found == functions_.end() ? nullptr : found->second.get();
}

std::map<std::string, std::string> Registry::list() const {
  std::map<std::string, std::string> all;
  for (const auto& [name, function] : functions_) all[name] = function->types;
  return all;
}

void Registry::insert(std::string name, std::shared_ptr<internal::Function> function,
                      FunctionOptions options, std::source_location site, bool own) {
  if (name.empty() || name.size() > 200)
    throw InvalidArgument("the name of a registered function has 1 to 200 bytes, not " +
                          std::to_string(name.size()));
  if (!own && name.starts_with("rpc."))
    throw InvalidArgument("'" + name + "': names that begin with 'rpc.' are the agent's own");
  if (functions_.contains(name))
    throw InvalidArgument("a function '" + name + "' is registered already, at " +
                          functions_.find(name)->second->site.file_name() + ":" +
                          std::to_string(functions_.find(name)->second->site.line()));
  function->name = name;
  function->options = options;
  function->site = site;
  functions_.emplace(std::move(name), std::move(function));
}

void internal::insert_own(Registry& registry, const std::string& name,
                          std::shared_ptr<Function> function, FunctionOptions options) {
  registry.insert(name, std::move(function), options, std::source_location::current(), true);
}

}  // namespace lockstep::inline v0::rpc
