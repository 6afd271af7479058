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
  static const int kCount = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return wide ? 3 : 2;
  }();
#elif defined(__aarch64__)
  static const Kernels* const kTables[] = {&isa_baseline::kTable, &isa_neon::kTable};
  static const int kCount = 2;
#else
  static const Kernels* const kTables[] = {&isa_baseline::kTable};
  static const int kCount = 1;
#endif
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
