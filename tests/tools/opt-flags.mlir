// RUN: steelyard-opt %s -p 'cse,scaled-canonicalize,func.func(cse)' --dump-pass-pipeline -o /dev/null 2>&1 | FileCheck %s --check-prefix=DUMP
// DUMP: builtin.module(cse,scaled-canonicalize,func.func(cse))

// RUN: steelyard-opt %s -pass-pipeline 'builtin.module(scaled-canonicalize,canonicalize{max-iterations=3})' | FileCheck %s --check-prefix=BOTH
// BOTH: func.func @f
// BOTH-NEXT: return %arg0

// RUN: steelyard-opt %s -p 'cse,scaled-canonicalize' --mlir-print-ir-after-all -o /dev/null 2>&1 | FileCheck %s --check-prefix=ALL
// ALL: IR Dump After cse (cse)
// ALL: scaled.pad
// ALL: IR Dump After scaled-canonicalize
// ALL-NOT: scaled.pad

// RUN: steelyard-opt %s -p 'cse,scaled-canonicalize' --mlir-print-ir-before-all -o /dev/null 2>&1 | FileCheck %s --check-prefix=BEFORE-ALL
// BEFORE-ALL: IR Dump Before cse (cse)
// BEFORE-ALL: IR Dump Before scaled-canonicalize

// RUN: steelyard-opt %s -p 'cse,scaled-canonicalize' --mlir-print-ir-after-change -o /dev/null 2>&1 | FileCheck %s --check-prefix=CHANGE
// CHANGE-NOT: IR Dump After cse
// CHANGE: IR Dump After scaled-canonicalize

// RUN: steelyard-opt %s -p 'cse,scaled-canonicalize' --mlir-print-ir-before=scaled-canonicalize --mlir-print-ir-after=scaled-canonicalize -o /dev/null 2>&1 | FileCheck %s --check-prefix=NAMED
// NAMED-NOT: IR Dump {{.*}} cse
// NAMED: IR Dump Before scaled-canonicalize (scaled-canonicalize)
// NAMED: scaled.pad
// NAMED: IR Dump After scaled-canonicalize (scaled-canonicalize)
// NAMED-NOT: scaled.pad

// RUN: rm -rf %t.tree && steelyard-opt %s -p 'cse,scaled-canonicalize' --mlir-print-ir-tree-dir=%t.tree -o /dev/null && ls %t.tree/builtin_module_no-symbol-name | FileCheck %s --check-prefix=TREE
// TREE: 0_cse.mlir
// TREE-NEXT: 1_scaled-canonicalize.mlir

// RUN: cat %t.tree/builtin_module_no-symbol-name/0_cse.mlir | FileCheck %s --check-prefix=TREE-TEXT
// TREE-TEXT: scaled.pad %arg0 to multiples(16, 32) :

// RUN: steelyard-opt %s --mlir-print-op-generic | FileCheck %s --check-prefix=GENERIC
// GENERIC: "scaled.pad"(%arg0) {multiples = array<i64: 16, 32>} : (tensor<32x64xf32>) -> tensor<32x64xf32>
// GENERIC-NEXT: "func.return"

// RUN: steelyard-opt %s -p 'cse,scaled-canonicalize' --mlir-timing -o /dev/null 2>&1 | FileCheck %s --check-prefix=TIMING
// TIMING: Execution time report
// TIMING: scaled-canonicalize

// RUN: steelyard-opt %s --mlir-print-debuginfo | FileCheck %s --check-prefix=LOC
// LOC: loc("{{.*}}opt-flags.mlir":{{[0-9]+}}:

// RUN: steelyard-opt --list-passes | FileCheck %s --check-prefix=LIST
// LIST: scaled-canonicalize {{.*}}Simplify
// LIST: steelyard-quantized

// RUN: steelyard-opt --help | FileCheck %s --check-prefix=HELP
// HELP: --pass-pipeline
// HELP: scaled-apply-recipe
// HELP: recipe=<Recipe> (required)

// RUN: steelyard-opt --version | FileCheck %s --check-prefix=VERSION
// VERSION: steelyard-opt {{[0-9.]+}}, torch-mlir {{[0-9]+}}

func.func @f(%x: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %0 = scaled.pad %x to multiples(16, 32) : tensor<32x64xf32> -> tensor<32x64xf32>
  return %0 : tensor<32x64xf32>
}
