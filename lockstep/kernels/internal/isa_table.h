// One instruction set's kernels. See isa_vector.h.
#pragma once

// A value that differs from itself is NaN, GCC's vector types need typedef, and every file compiles
// these bodies once.
// NOLINTBEGIN(misc-redundant-expression, modernize-use-using, misc-definitions-in-headers)

#include "lockstep/kernels/internal/isa_activation.h"
#include "lockstep/kernels/internal/isa_cross_entropy.h"
#include "lockstep/kernels/internal/isa_decoder.h"
#include "lockstep/kernels/internal/isa_layout.h"
#include "lockstep/kernels/internal/isa_norm.h"
#include "lockstep/kernels/internal/isa_normal.h"
#include "lockstep/kernels/internal/isa_softmax.h"

namespace lockstep::inline v0::kernels::LOCKSTEP_ISA {

extern const Kernels kTable;
const Kernels kTable = {LOCKSTEP_ISA_NAME,
                        norm_forward,
                        norm_backward,
                        activate,
                        activate_backward,
                        softmax,
                        softmax_backward,
                        log_sums,
                        cross_entropy_gradient,
                        kept,
                        rms_norm,
                        rms_norm_backward,
                        swiglu,
                        swiglu_backward,
                        rotate,
                        rotate_back,
                        round,
                        round_rows,
                        widen,
                        sum_rows,
                        transpose,
                        pack_rows,
                        pack_columns,
                        fill_normal};

}  // namespace lockstep::inline v0::kernels::LOCKSTEP_ISA

// NOLINTEND(misc-redundant-expression, modernize-use-using, misc-definitions-in-headers)
