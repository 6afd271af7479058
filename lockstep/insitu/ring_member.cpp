#include "lockstep/insitu/ring_member.h"

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::insitu {

void expect_schema(const std::string& name, int memory, const Schema& schema) {
  const std::string other = difference(map_ring(memory).geometry.schema, schema);
  if (!other.empty()) throw Mismatch("insitu: ring '" + name + "': " + other);
}

}  // namespace lockstep::inline v0::insitu
