// For users of the library: all of Abele's C++ API. Includes nothing of LibTorch; include torch/torch.h yourself.
// A program: examples/cpp/. Read options.h, annotate.h, model.h in this order.
#pragma once

#include "abele/annotate.h"
#include "abele/checkpoint.h"   // IWYU pragma: export
#include "abele/custom_op.h"    // IWYU pragma: export
#include "abele/data_loader.h"  // IWYU pragma: export
#include "abele/environment.h"  // IWYU pragma: export
#include "abele/error.h"        // IWYU pragma: export
#include "abele/ipu_config.h"   // IWYU pragma: export
#include "abele/model.h"        // IWYU pragma: export
#include "abele/ops.h"
#include "abele/optim.h"      // IWYU pragma: export
#include "abele/options.h"    // IWYU pragma: export
#include "abele/placement.h"  // IWYU pragma: export
#include "abele/processes.h"
#include "abele/profiling.h"
#include "abele/script.h"     // IWYU pragma: export
#include "abele/server.h"     // IWYU pragma: export
#include "abele/signature.h"  // IWYU pragma: export
#include "abele/simulate.h"   // IWYU pragma: export
#include "abele/stop.h"       // IWYU pragma: export
#include "abele/verify.h"     // IWYU pragma: export
#include "abele/version.h"    // IWYU pragma: export
