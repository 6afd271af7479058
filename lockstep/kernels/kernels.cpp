#include "lockstep/kernels/kernels.h"

#include <algorithm>

#include "lockstep/core/instruction_set.h"

namespace lockstep::inline v0::kernels {

// They are declared here alone, because the tables lie in files that are compiled for newer
// processors.
namespace isa_baseline {
extern const Kernels kTable;
}
#if defined(__x86_64__)
namespace isa_avx2 {  // with FMA
extern const Kernels kTable;
}
namespace isa_avx512 {  // F, BW, DQ, VL
extern const Kernels kTable;
}
#elif defined(__aarch64__)
namespace isa_neon {  // every processor has it
extern const Kernels kTable;
}
#endif

KernelList all_kernels() {
#if defined(__x86_64__)
  static const Kernels* const kTables[] = {&isa_baseline::kTable, &isa_avx2::kTable,
                                           &isa_avx512::kTable};
#elif defined(__aarch64__)
  static const Kernels* const kTables[] = {&isa_baseline::kTable, &isa_neon::kTable};
#else
  static const Kernels* const kTables[] = {&isa_baseline::kTable};
#endif
  // instruction_sets() has them in the tables' order.
  static const int kCount = [] {
    const auto sets = instruction_sets();
    const InstructionSet newest =
        instruction_set_used([](std::string_view) { return std::nullopt; });
    return 1 + static_cast<int>(std::find(sets.begin(), sets.end(), newest) - sets.begin());
  }();
  return {kTables, kCount};
}

const Kernels& kernels() {
  static const Kernels& best = []() -> const Kernels& {
    const KernelList all = all_kernels();
    const int limit = static_cast<int>(instruction_set_limit(process_env()));
    return *all.first[std::min(all.count - 1, limit)];
  }();
  return best;
}

}  // namespace lockstep::inline v0::kernels
