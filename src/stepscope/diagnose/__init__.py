"""Rules over the account: findings with cost, saving, evidence, cause and remedy; check lists; the guided
investigation. Each rule is one small file and follows from the account.
"""
