add_cc_test(base_test ${CMAKE_CURRENT_LIST_DIR}/base_test.cc)
